"""Loss masks of whole dialogues by token ids: 1 on what the assistant says, its end of turn included, 0 elsewhere.

    mask = loss_mask("qwen", Chat(tokenizer))
    mask(ids)                         uint8 [tokens]

In reinforcement learning no such scan is needed: the mask is 1 on the ids that were sampled (`core.episodes.samples`).
The supervised phase builds dialogues the same way, turn by turn (`rows`), or takes ids that a template rendered whole
and scans them. Both agree, token by token, on everything after the ids that a row was begun with.

    <|im_start|> assistant \\n  class ModelNew ... <|im_end|> \\n <|im_start|> user ...
    0            0         0    1 ...              1          0  0            0

The opening of a turn is never trained on, nor is what the template opens for an answer (Qwen3's empty thought), nor a
token that reaches over the border: a tokenizer that merges the header's line end with the answer's first characters
makes an id that the policy is never asked for, since in a rollout the prompt ends at the border.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from core.episodes.prompts import Message

if TYPE_CHECKING:
    from core.episodes.chat import Chat


class _Form(NamedTuple):
    """How a family of templates writes an answer."""

    start: str
    """The control token that opens every turn."""
    header: str
    """The rest of an answer's opening."""
    end: str
    """The control token that ends a turn."""
    other_ends: tuple[str, ...] = ()
    """Further tokens that models of the family end a completion with, where the tokenizer has them."""


_QWEN = _Form("<|im_start|>", "assistant\n", "<|im_end|>", ("<|endoftext|>",))
_LLAMA = _Form("<|start_header_id|>", "assistant<|end_header_id|>\n\n", "<|eot_id|>", ("<|end_of_text|>", "<|eom_id|>"))
_FORMS = {"qwen": _QWEN, "llama": _LLAMA, "kernelllm": _LLAMA, "llama3": _LLAMA, "llama3.1": _LLAMA}
NAMES = tuple(_FORMS)


class LossMask:
    """See the module. Made by `loss_mask`."""

    def __init__(self, form: _Form, chat: "Chat") -> None:
        vocabulary = {token: int(i) for token, i in chat.tokenizer.get_added_vocab().items()}
        missing = [token for token in (form.start, form.end) if token not in vocabulary]
        if missing:
            known = [name for name, other in _FORMS.items() if other.start in vocabulary and other.end in vocabulary]
            raise ValueError(
                f"the tokenizer has no token {' and no '.join(missing)}; "
                f"masks that fit it: {', '.join(known) or 'none'}"
            )
        self._chat = chat
        self._start = vocabulary[form.start]
        self._header = form.header
        opening = chat.opening()
        self._opened = opening.removeprefix(form.start + form.header) if not chat.plain else ""
        ends = {vocabulary[form.end], *(vocabulary[token] for token in form.other_ends if token in vocabulary)}
        self._ends = np.array(sorted(ends))

    def __call__(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """uint8 [tokens], 1 on the tokens of answers and of the ends of their turns. An answer without an end reaches
        to the last id."""
        row = np.asarray(ids, np.int64)
        mask = np.zeros(len(row), np.uint8)
        ends = np.flatnonzero(np.isin(row, self._ends))
        done = 0
        for start in np.flatnonzero(row == self._start):
            if start < done:
                continue  # sampled inside an answer
            begin = self._after(row, int(start) + 1, self._header)
            if begin is None:
                continue
            if self._opened:
                begin = self._after(row, begin, self._opened) or begin
            at = int(np.searchsorted(ends, begin))
            done = int(ends[at]) + 1 if at < len(ends) else len(row)
            mask[begin:done] = 1
        return mask

    def _after(self, row: np.ndarray, begin: int, text: str) -> int | None:
        """Index after the tokens from `begin` on that spell `text`, or None when they spell something else."""
        for stop in range(begin + 1, min(len(row), begin + len(text)) + 1):
            spelled = self._chat.spell(row[begin:stop].tolist())
            if spelled.startswith(text):
                return stop
            if not text.startswith(spelled):
                return None
        return None


def loss_mask(name: str, chat: "Chat") -> LossMask:
    """The mask `name`, one of NAMES. Raises ValueError for another name, or a tokenizer of another family."""
    if name not in _FORMS:
        raise ValueError(f"unknown loss mask {name!r}; known: {', '.join(NAMES)}")
    return LossMask(_FORMS[name], chat)


class Row(NamedTuple):
    """Ids to train on."""

    ids: np.ndarray
    """int32 [tokens]"""
    mask: np.ndarray
    """uint8 [tokens], 1 on answers and their ends of turn"""


def rows(chat: "Chat", messages: Sequence[Message]) -> list[Row]:
    """A whole dialogue as rows of a supervised phase, built turn by turn as a rollout builds it. One row where the
    template keeps earlier turns; where it rewrites them the turn opens a new row, whose earlier answers are context
    only. `messages`: the first ones up to a user's, then the assistant and the user in turn, the assistant last.
    Raises ValueError for another order."""
    spoken = [message["role"] for message in messages]
    begin = spoken.index("assistant") if "assistant" in spoken else 0
    if begin == 0 or spoken[begin - 1 :] != ["user", "assistant"] * ((len(spoken) - begin + 1) // 2):
        raise ValueError(f"got a dialogue of {', '.join(spoken) or 'nothing'}; wanted user, assistant, ..., assistant")
    answers = range(begin, len(messages), 2)
    prompt = chat.first(messages[:begin])
    ids, mask = list(prompt), [0] * len(prompt)
    made: list[Row] = []
    for at in answers:
        answer = chat.answer_ids(messages[at]["content"])
        ids += answer
        mask += [1] * len(answer)
        if at + 1 == len(messages):
            break
        following, joined = chat.extend(ids[: -len(answer)], answer, messages[:at], messages[at + 1]["content"])
        if not joined:
            made.append(_row(ids, mask))
            ids, mask = [], []
        mask += [0] * (len(following) - len(ids))
        ids = list(following)
    return [*made, _row(ids, mask)]


def _row(ids: list[int], mask: list[int]) -> Row:
    return Row(np.array(ids, np.int32), np.array(mask, np.uint8))
