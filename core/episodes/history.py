"""What a later turn's prompt holds of the turns before it, under an exact budget of tokens.

    whole        every exchange as it was. The prompt of a turn begins with the one before, id by id, where the chat
                 template keeps earlier turns.
    compressed   the same, as long as it fits. A prompt above the budget is made anew: the task, a line for each earlier
                 attempt, then the best and the last attempt whole, each with what was said to it.

Compressing breaks the prefix, so that the turn opens a new sample (`core.episodes.samples` sees it by the ids); later
turns go on from the compressed prompt while they fit. Lines are left out where the budget wants it, the oldest first.
The best and the last attempt are never cut: where they do not fit, the episode is over (reason `context`).

The budget counts the ids of the prompt itself, as the engine gets them, and is never exceeded.

    history = History(chat, messages, ids, mode="compressed", style="compact", budget_tokens=2048)
    history.add(completion.ids, text, verdict, score)         False: the next prompt does not fit
    history.ids, history.joined
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from core.episodes import prompts
from core.episodes.prompts import Message
from core.evaluation.verdict import Verdict

if TYPE_CHECKING:
    from core.episodes.chat import Chat

MODES = ("whole", "compressed")


class Attempt(NamedTuple):
    """One turn, as later prompts show it."""

    text: str
    """The answer, without its end of turn."""
    feedback: str
    line: str
    """Its summary."""
    score: float


class History:
    """The dialogue of one episode, and its next prompt."""

    def __init__(
        self,
        chat: "Chat",
        messages: Sequence[Message],
        ids: Sequence[int],
        *,
        mode: str,
        style: str,
        budget_tokens: int,
    ) -> None:
        """`messages` and `ids` are the first prompt, on which the budget is not asked. Raises ValueError for an unknown
        mode."""
        if mode not in MODES:
            raise ValueError(f"unknown history {mode!r}; known: {', '.join(MODES)}")
        self.ids: list[int] = list(ids)
        """The next turn's prompt."""
        self.joined = True
        """True when it begins with the prompt and the completion before."""
        self._chat, self._style, self._mode, self._budget_tokens = chat, style, mode, budget_tokens
        self._task = list(messages)
        self._messages = list(messages)
        """The dialogue that `ids` stands for."""
        self._attempts: list[Attempt] = []

    def add(self, completion_ids: Sequence[int] | np.ndarray, text: str, verdict: Verdict, score: float | None) -> bool:
        """Make the next prompt after a completion and its verdict. False when it does not fit the budget; `ids` is then
        the shortest that there is."""
        number = len(self._attempts)
        feedback = prompts.feedback_message(verdict, score, self._style, number)
        line = prompts.summary_line(verdict, score, self._style, number)
        self._attempts.append(Attempt(text, feedback, line, score or 0.0))
        self.ids, self.joined = self._chat.extend(self.ids, completion_ids, self._messages, feedback)
        self._messages += _exchange(self._attempts[-1])
        if len(self.ids) > self._budget_tokens and self._mode == "compressed":
            self._compress()
        return len(self.ids) <= self._budget_tokens

    def _compress(self) -> None:
        last = len(self._attempts) - 1
        best = max(range(last + 1), key=lambda i: (self._attempts[i].score, i))
        kept = sorted({best, last})
        lines = [attempt.line for i, attempt in enumerate(self._attempts) if i not in kept]
        made: dict[int, tuple[list[Message], list[int]]] = {}

        def tokens(count: int) -> int:
            messages = self._compressed(kept, lines[len(lines) - count :])
            made[count] = messages, self._chat.first(messages)
            return len(made[count][1])

        # The most lines that fit; the newest stay longest. With no line that fits, the bare prompt.
        count = max(bisect_right(range(len(lines) + 1), self._budget_tokens, key=tokens) - 1, 0)
        if count not in made:
            tokens(count)
        messages, ids = made[count]
        if len(ids) < len(self.ids):
            self._messages, self.ids, self.joined = messages, ids, False

    def _compressed(self, kept: Sequence[int], lines: Sequence[str]) -> list[Message]:
        task = list(self._task)
        if lines:
            said = f"{task[-1]['content']}\n\n{prompts.summary(lines, self._style)}"
            task[-1] = {**task[-1], "content": said}
        return [*task, *(message for i in kept for message in _exchange(self._attempts[i]))]


def _exchange(attempt: Attempt) -> list[Message]:
    return [{"role": "assistant", "content": attempt.text}, {"role": "user", "content": attempt.feedback}]
