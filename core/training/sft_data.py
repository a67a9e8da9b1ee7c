"""Supervised examples as token ids: prompts exactly as reinforcement learning renders them, and the answer.

Three kinds, all from pairs that `core.tasks.pairs` makes:

    first turn    task                                                  -> kernel, right or with a planted mistake
    repair        task, kernel with a mistake, what the judge said       -> kernel, right or with a mistake again
    speed-up      task, right kernel in the slow style, its speed        -> the fused kernel

What the judge says after a mistake is drawn from verdicts that the real judge gave for the same kind of mistake
(`core.training.sft_feedback` records them), so that no sandbox is needed where the training runs. Loss is on the last
answer alone: the failed kernel of a repair is context.
"""

import multiprocessing
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from core import plain_files
from core.episodes.prompts import feedback_message, first_messages
from core.evaluation.verdict import Verdict
from core.tasks.pairs import Pair, pairs

if TYPE_CHECKING:
    from core.episodes.chat import Chat

STYLE = "compact"
MAX_LINE = 64 << 20
"""Bytes of a line of messages."""
SLOW = "slow"
"""Key of the recorded verdicts of right kernels in the staged style."""


class Shares(NamedTuple):
    """How examples are mixed; all between 0 and 1."""

    mistakes: float = 0.0
    """Of first turns whose kernel carries a mistake."""
    repair_mistakes: float = 0.0
    """Of repairs that still carry one."""
    second_turns: float = 0.0
    """Of examples that are repairs."""
    staged: float = 0.0
    """Of kernels, right or wrong, in the slow style."""
    slow_turns: float = 0.0
    """Of examples that are speed-ups."""


class _Line(msgspec.Struct):
    messages: list[dict[str, str]]


class Dialogue(NamedTuple):
    """One example as text."""

    task_messages: list[dict[str, str]]
    previous: str | None
    """The answer before, and what was said to it; None for a first turn."""
    feedback: str | None
    answer: str
    mistake: str | None
    """Kind of the mistake in `answer`."""


class Example(NamedTuple):
    """One example as ids."""

    prompt: np.ndarray
    """int32, from the beginning to where the answer begins"""
    answer: np.ndarray
    """int32, its end of turn included"""


def answer_text(kernel: str) -> str:
    """A kernel as the policy is taught to answer: one fenced block and nothing else."""
    return f"```python\n{kernel.strip()}\n```"


def dialogues(seed: int, count: int, shares: Shares, verdicts: Mapping[str, Sequence[Verdict]]) -> Iterator[Dialogue]:
    """`count` examples, each of another composition of the train side; equal arguments give equal examples.

    verdicts: recorded answers of the judge by kind of mistake, and SLOW. Raises ValueError when a kind is missing.
    """
    rng = random.Random(f"sft {seed}")
    wanted = {
        "mistakes": shares.mistakes,
        "repair_mistakes": shares.repair_mistakes,
        "second_turns": shares.second_turns,
    }
    # The same compositions, right and in either style: a share only decides what becomes of a draw.
    styles: list[Iterable[Pair | None]] = [repeat(None)] * 2
    if shares.slow_turns:
        styles = [pairs(seed, count, staged=share) for share in (1.0, 0.0)]
    for pair, staged, fused in zip(pairs(seed, count, staged=shares.staged, **wanted), *styles, strict=False):
        task_messages = first_messages(pair.task, STYLE)
        if staged and fused and rng.random() < shares.slow_turns:
            said = feedback_message(_pick(rng, verdicts, SLOW), None, STYLE, 0)
            yield Dialogue(task_messages, answer_text(staged.kernel), said, answer_text(fused.kernel), None)
        elif pair.previous is None:
            yield Dialogue(task_messages, None, None, answer_text(pair.kernel), pair.mistake)
        else:
            said = feedback_message(_verdict(rng, verdicts, pair), None, STYLE, 0)
            yield Dialogue(task_messages, answer_text(pair.previous), said, answer_text(pair.kernel), pair.mistake)


def _verdict(rng: random.Random, verdicts: Mapping[str, Sequence[Verdict]], pair: Pair) -> Verdict:
    assert pair.previous_mistake is not None
    return _pick(rng, verdicts, pair.previous_mistake)


def _pick(rng: random.Random, verdicts: Mapping[str, Sequence[Verdict]], key: str) -> Verdict:
    if not verdicts.get(key):
        raise ValueError(
            f"no recorded verdict for {key!r}: record them again with `python -m core.training.sft_feedback`"
        )
    return verdicts[key][int(rng.random() * len(verdicts[key]))]


def tokenize_all(dialogues: Sequence[Dialogue], chat: "Chat", processes: int = 1) -> list[Example]:
    """`tokenize` for each; with several processes, forked, so call it before CUDA is used."""
    global _CHAT
    if processes < 2:
        return [tokenize(dialogue, chat) for dialogue in dialogues]
    _CHAT = chat
    try:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            return pool.map(_tokenize_in_child, dialogues, chunksize=200)
    finally:
        _CHAT = None


_CHAT: "Chat | None" = None
"""What forked children tokenize with; inherited, since a tokenizer is slow to send."""


def _tokenize_in_child(dialogue: Dialogue) -> Example:
    assert _CHAT is not None
    return tokenize(dialogue, _CHAT)


def tokenize(dialogue: Dialogue, chat: "Chat") -> Example:
    """Ids of an example, by the functions that reinforcement learning renders prompts with."""
    prompt = chat.first(dialogue.task_messages)
    if dialogue.previous is not None and dialogue.feedback is not None:
        before = chat.answer_ids(dialogue.previous)
        prompt = chat.extend(prompt, before, dialogue.task_messages, dialogue.feedback).ids
    return Example(np.asarray(prompt, np.int32), np.asarray(chat.answer_ids(dialogue.answer), np.int32))


def read_jsonl(path: str | Path, count: int, seed: int) -> list[Dialogue]:
    """Dialogues from JSON Lines, `{"messages": [{"role": .., "content": ..}, ..]}` with the assistant's answer last; at
    most `count`, chosen by `seed`. Raises ValueError with the line's number for anything else."""
    out = []
    with plain_files.opened(Path(path), str(path)) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
            if len(line) > MAX_LINE:
                raise ValueError(f"{path}:{number}: a line of more than {MAX_LINE:,} bytes; at most these are read")
            try:
                messages = msgspec.json.decode(line, type=_Line).messages
            except msgspec.DecodeError as error:
                raise ValueError(
                    f"{path}:{number}: {error}; wanted {{'messages': [..]}} with roles and contents"
                ) from None
            if len(messages) < 2 or messages[-1]["role"] != "assistant":
                raise ValueError(f"{path}:{number}: the last of at least two messages must be the assistant's")
            out.append(Dialogue(messages[:-1], None, None, messages[-1]["content"], None))
    return random.Random(f"sft {seed}").sample(out, min(count, len(out)))


def texts_of(dialogue: Dialogue) -> list[str]:
    """All that is said in it, to train a tokenizer on."""
    said = [message["content"] for message in dialogue.task_messages]
    return [*said, *(text for text in (dialogue.previous, dialogue.feedback, dialogue.answer) if text)]
