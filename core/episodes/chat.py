"""Chat on token ids: token in, token out.

The ids that an engine was given and sampled are never made again from text. The next turn's prompt is the earlier
prompt, the completion, and only then new tokens: what the tokenizer's own chat template puts between the end of an
answer and the next one. That piece is found by rendering the dialogue with a marker in the answer's place, so it
works for every template that keeps earlier turns as they were. White space that a template trims around an answer is
no rewriting: the sampled ids stay.

Some templates do rewrite: Qwen3's drops the thinking of earlier answers, and the empty thought that it opens for an
answer without thinking. There the next prompt is rendered afresh and `Extended.joined` is False; the learner then opens
a new sample (DESIGN §4.4).

    chat = Chat(tokenizer)
    prompt = chat.first([{"role": "user", "content": "..."}])
    completion = engine ... (ends with one of chat.stop_ids, or was cut)
    prompt, joined = chat.extend(prompt, completion, history, "fail wrong_value ...")

A template is the only source of control tokens: `add_special_tokens` is off, so no second BOS appears, and control
tokens spelled out in a message are broken up. Models that were trained without a template (KernelLLM) are prompted
through `PLAIN`, see `for_style`.
"""

import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from core.episodes.prompts import PLAIN_STYLES, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ m['content'] }}"
    "{{ eos_token if m['role'] == 'assistant' else '' }}{{ '\n' }}{% endfor %}"
)
"""The template of a plain completion: BOS, the text, a line's end, the answer, EOS."""

_MARK = "Xq7answer7qX"
"""Stands for an answer in a rendering; any word that templates don't treat specially."""
_THINK_TAG = re.compile(r"(</?think>)")
_DATE = "26 Jul 2024"
"""Llama's templates write a date into the system message, from 3.2 on today's: prompts must be equal on every day, so
it is the date that these templates fall back to."""


class Extended(NamedTuple):
    """The next turn's prompt."""

    ids: list[int]
    joined: bool
    """True when `ids` begins with the earlier prompt and completion, id by id."""


class Chat:
    """A tokenizer with its chat template, on ids."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        thinking: bool = False,
        extra_stop_ids: Sequence[int] = (),
        plain: bool = False,
        lock: "threading.Lock | None" = None,
    ) -> None:
        """`thinking` is passed to templates that know `enable_thinking`; `extra_stop_ids` are further ids that end a
        turn, beside those of the tokenizer and of the model folder's generation config; `plain` takes the template
        PLAIN instead of the tokenizer's; `lock` is what users of the same tokenizer share. Raises ValueError for a
        tokenizer without a usable chat template."""
        if not plain and not tokenizer.chat_template:
            raise ValueError(
                "the tokenizer has no chat template: add `chat_template` to the model folder, or take a plain prompt "
                f"style ({', '.join(sorted(PLAIN_STYLES))})"
            )
        self.tokenizer = tokenizer
        self.thinking = thinking
        self.plain = plain
        # Fast tokenizers refuse to be used by two threads at once ("already borrowed").
        self._one_at_a_time = lock or threading.Lock()
        self._plain_twin: Chat | None = self if plain else None
        control = {int(i): str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._specials = sorted({*control.values(), *tokenizer.all_special_tokens}, key=len, reverse=True)
        question = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        closing = self._encode(self._render(question, answer_next=False).rpartition(_MARK)[2])
        end = next((i for i in closing if i in control), tokenizer.eos_token_id)
        if end is None:
            raise ValueError("the chat template does not say how an answer ends and the tokenizer has no eos token")
        self.end_id: int = int(end)
        """The id that ends an answer."""
        self._extra_stop_ids = tuple(extra_stop_ids)
        stops = {self.end_id, *extra_stop_ids, *generation_stop_ids(tokenizer.name_or_path), tokenizer.eos_token_id}
        self.stop_ids: tuple[int, ...] = tuple(sorted(int(stop) for stop in stops if stop is not None))
        """Sampling any of these ends a turn."""

    def for_style(self, style: str) -> "Chat":
        """The chat that prompts of `style` go through: itself, or one on the same tokenizer with the template PLAIN."""
        if style not in PLAIN_STYLES:
            return self
        if self._plain_twin is None:
            self._plain_twin = Chat(
                self.tokenizer,
                thinking=self.thinking,
                extra_stop_ids=self._extra_stop_ids,
                plain=True,
                lock=self._one_at_a_time,
            )
        return self._plain_twin

    def first(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a dialogue (its last message is a user's) up to where the answer begins. Raises ValueError when the
        template refuses the order of roles."""
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
        mark = _marked(answer)
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
        """The text of a completion without the token that ended it, as sampled: no tidying of spaces."""
        ids = [int(i) for i in completion_ids]
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return self.spell(ids)

    def spell(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        with self._one_at_a_time:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def answer_ids(self, text: str) -> list[int]:
        """`text` as the completion that a policy would have sampled, its end of turn included; for supervised data."""
        return [*self._encode(self._plain({"role": "assistant", "content": text})["content"]), self.end_id]

    def opening(self) -> str:
        """What the template puts before an answer, e.g. `<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n`."""
        question = [{"role": "user", "content": "?"}]
        return self._render(question, answer_next=True)[len(self._render(question, answer_next=False)) :]

    def _render(self, messages: Sequence[Message], answer_next: bool) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages),
                    chat_template=PLAIN if self.plain else None,
                    tokenize=False,
                    add_generation_prompt=answer_next,
                    enable_thinking=self.thinking,
                    date_string=_DATE,
                )
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(f"the chat template refuses a dialogue of {roles}: {error}") from error

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        with self._one_at_a_time:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _plain(self, message: Message) -> Message:
        """Content in which no control token can be spelled out: a kernel's own error text must not end a turn."""
        content = message["content"]
        for special in self._specials:
            content = content.replace(special, f"{special[0]} {special[1:]}")
        return {**message, "content": content}


def generation_stop_ids(folder: str | Path) -> tuple[int, ...]:
    """The ids that end a completion by the `generation_config.json` of a model folder (`eos_token_id`, one or several);
    empty where there is none."""
    path = Path(folder) / "generation_config.json"
    if not str(folder) or not path.is_file():
        return ()
    found = json.loads(path.read_bytes()).get("eos_token_id")
    return () if found is None else tuple(int(i) for i in (found if isinstance(found, list) else [found]))


def _marked(answer: str) -> str:
    """An answer's skeleton: its thinking tags and the white space at them as they are, markers for what stands
    between. What a template does to it is what it does to the answer."""
    parts = _THINK_TAG.split(answer)
    if len(parts) == 1:
        return _MARK
    skeleton = "".join(part if _THINK_TAG.fullmatch(part) else _with_edges(part) for part in parts)
    return skeleton.strip()


def _with_edges(part: str) -> str:
    core = part.strip()
    return part.replace(core, _MARK) if core else part
