"""Chat on token ids: token in, token out.

The ids that an engine was given and sampled are never made again from text. The next turn's prompt is the earlier
prompt, the completion, and only then new tokens: what the tokenizer's own chat template puts between the end of an
answer and the next one. That piece is found by rendering the dialogue with a marker in the answer's place, so it
works for every template that keeps earlier turns as they were.

Some templates don't: Qwen3's drops the thinking of earlier answers. Where the template would rewrite what stands, the
next prompt is rendered afresh and `Extended.joined` is False; the learner then opens a new sample (DESIGN §4.4).

    chat = Chat(tokenizer)
    prompt = chat.first([{"role": "user", "content": "..."}])
    completion = engine ... (ends with one of chat.stop_ids, or was cut)
    prompt, joined = chat.extend(prompt, completion, history, "fail wrong_value ...")
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from core.episodes.prompts import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "Xq7answer7qX"
"""Stands for an answer in a rendering; any word that templates don't treat specially."""


class Extended(NamedTuple):
    """The next turn's prompt."""

    ids: list[int]
    joined: bool
    """True when `ids` begins with the earlier prompt and completion, id by id."""


class Chat:
    """A tokenizer with its chat template, on ids."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", *, thinking: bool = False, extra_stop_ids: Sequence[int] = ()
    ) -> None:
        """`thinking` is passed to templates that know `enable_thinking`; `extra_stop_ids` are further ids that end a
        turn (a generation config's list, say). Raises ValueError for a tokenizer without a usable chat template."""
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template: add `chat_template` to the model folder")
        self.tokenizer = tokenizer
        self.thinking = thinking
        self._one_at_a_time = threading.Lock()
        control = {int(i): str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._specials = sorted({*control.values(), *tokenizer.all_special_tokens}, key=len, reverse=True)
        question = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        closing = self._encode(self._render(question, answer_next=False).rpartition(_MARK)[2])
        end = next((i for i in closing if i in control), tokenizer.eos_token_id)
        if end is None:
            raise ValueError("the chat template does not say how an answer ends and the tokenizer has no eos token")
        self.end_id: int = int(end)
        """The id that ends an answer."""
        stops = {self.end_id, *extra_stop_ids} | ({tokenizer.eos_token_id} - {None})
        self.stop_ids: tuple[int, ...] = tuple(sorted(int(stop) for stop in stops))
        """Sampling any of these ends a turn."""

    def first(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a dialogue (its last message is a user's) up to where the answer begins."""
        return self._encode(self._render([self._plain(message) for message in messages], answer_next=True))

    def extend(
        self,
        prompt_ids: Sequence[int] | np.ndarray,
        completion_ids: Sequence[int] | np.ndarray,
        history: Sequence[Message],
        user_message: str,
    ) -> Extended:
        """The prompt after one more exchange. `history` is the dialogue that `prompt_ids` stands for (its last message
        is a user's); a completion that was cut off gets its end of turn as context."""
        prompt, completion = [int(i) for i in prompt_ids], [int(i) for i in completion_ids]
        ended = bool(completion) and completion[-1] in self.stop_ids
        answer = self.text(completion)
        mark = _MARK
        if "</think>" in answer or "<think>" in answer:
            opened = "<think>\n" if "<think>" in answer else ""
            mark = f"{opened}{_MARK}\n</think>\n\n{_MARK}"
        old = [self._plain(message) for message in history]
        new = self._plain({"role": "user", "content": user_message})
        before = self._render(old, answer_next=True) + mark
        after = self._render([*old, {"role": "assistant", "content": mark}, new], answer_next=True)
        if not after.startswith(before):
            spoken = self._plain({"role": "assistant", "content": answer})
            return Extended(self._encode(self._render([*old, spoken, new], answer_next=True)), joined=False)
        added = self._encode(after[len(before) :])
        if ended and added and added[0] == completion[-1]:
            added = added[1:]
        return Extended([*prompt, *completion, *added], joined=True)

    def text(self, completion_ids: Sequence[int] | np.ndarray) -> str:
        """The text of a completion without the token that ended it."""
        ids = [int(i) for i in completion_ids]
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def answer_ids(self, text: str) -> list[int]:
        """`text` as the completion that a policy would have sampled, its end of turn included; for supervised data."""
        return [*self._encode(self._plain({"role": "assistant", "content": text})["content"]), self.end_id]

    def _render(self, messages: Sequence[Message], answer_next: bool) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=answer_next, enable_thinking=self.thinking
            )
        )

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        # Fast tokenizers refuse to be used by two threads at once ("already borrowed").
        with self._one_at_a_time:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _plain(self, message: Message) -> Message:
        """Content in which no control token can be spelled out: a kernel's own error text must not end a turn."""
        content = message["content"]
        for special in self._specials:
            content = content.replace(special, f"{special[0]} {special[1:]}")
        return {**message, "content": content}
