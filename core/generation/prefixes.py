"""Keys and values of sequences that ended, kept for prompts that go on from them: a dialogue's next turn.

What is kept belongs to one policy version: a row that saw two, or a cache from before a swap, is never reused
(reference: stale prefix caches after an update). Bounded in tokens; the least recently used goes first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple


class Prefix(NamedTuple):
    tokens: int
    state: Any
    """What the decoder saved."""


class Prefixes:
    """Saved states by the ids that they stand for."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._kept: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, ids: Sequence[int], state: Any) -> None:
        key = tuple(ids)
        if len(key) > self.max_tokens:
            return
        if key in self._kept:
            self._tokens -= len(key)
        self._kept[key] = state
        self._kept.move_to_end(key)
        self._tokens += len(key)
        while self._tokens > self.max_tokens:
            gone, _ = self._kept.popitem(last=False)
            self._tokens -= len(gone)

    def find(self, prompt: Sequence[int]) -> Prefix | None:
        """The longest kept sequence that `prompt` begins with and is longer than."""
        ids = tuple(prompt)
        best: tuple[int, ...] = ()
        for key in self._kept:
            if len(best) < len(key) < len(ids) and ids[: len(key)] == key:
                best = key
        if not best:
            return None
        self._kept.move_to_end(best)
        return Prefix(len(best), self._kept[best])

    def clear(self) -> None:
        self._kept.clear()
        self._tokens = 0
