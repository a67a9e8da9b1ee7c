"""Which weights sampled each token of a request, also when they changed while it ran.

The engine counts the tokens that stand at each pause; a vLLM that reports spans of weight versions is believed, and
compared with the counts.
"""

from typing import Any

import numpy as np

from core.generation import vllm_compat as compat


class Running:
    """A request that the core holds."""

    __slots__ = ("_before", "collector")

    def __init__(self, collector: Any) -> None:
        self.collector = collector
        self._before: list[tuple[int, int]] = []

    def stands(self, tokens: int, version: int) -> None:
        """The first `tokens` tokens stand now, those since the last call sampled by `version`. More than there will be
        means all of them."""
        self._before.append((tokens, version))

    def versions(self, completion: Any, version: int) -> tuple[np.ndarray, bool]:
        """int32 [tokens] of the finished completion, whose last tokens `version` sampled; whether vLLM, where it
        reports versions, reports the same."""
        counted = np.full(len(completion.token_ids), version, np.int32)
        done = 0
        for count, earlier in self._before:
            counted[done:count] = earlier
            done = count
        reported = compat.spans(completion)
        if reported is None or not all(name.isdigit() for name, _, _ in reported):
            return counted, True
        told = np.concatenate([np.full(end - start, int(name), np.int32) for name, start, end in reported])
        return told, bool(np.array_equal(told, counted))
