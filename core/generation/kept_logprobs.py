"""Log-probs of unfinished requests, one number a token, taken in step by step for all requests at once.

An engine's core has ten milliseconds for a step of hundreds of requests, and this is called in each: a row of one array
for each request, and what all requests sampled goes in by one assignment. numpy alone.
"""

from collections.abc import Collection, Iterable

import numpy as np

_ROWS, _TOKENS = 64, 256


class KeptLogprobs:
    """By request id; float32."""

    def __init__(self) -> None:
        self._values = np.zeros((_ROWS, _TOKENS), np.float32)
        self._counts = np.zeros(_ROWS, np.int64)
        self._row: dict[str, int] = {}
        self._free = list(range(_ROWS))[::-1]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._row

    def __len__(self) -> int:
        return len(self._row)

    def begin(self, request_id: str, alive: Collection[str]) -> None:
        """Keep what this request samples. `alive` are the requests that there are, looked at where room is short: those
        that were aborted never say so."""
        if not self._free:
            for gone in [other for other in self._row if other not in alive]:
                self.take(gone)
        if not self._free:
            rows = len(self._counts)
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._free = list(range(rows, 2 * rows))[::-1]
        row = self._row[request_id] = self._free.pop()
        self._counts[row] = 0

    def add_each(self, request_ids: Iterable[str], values: np.ndarray) -> None:
        """One token of each: `values` float32 [requests], no request twice. Raises KeyError, and takes nothing in,
        where one of them was not begun."""
        rows = np.array(list(map(self._row.__getitem__, request_ids)), np.int64)
        at = self._counts[rows]
        if at.max(initial=0) >= self._values.shape[1]:
            self._widen(1)
        self._values[rows, at] = values
        self._counts[rows] = at + 1

    def add(self, request_id: str, values: np.ndarray) -> None:
        """Any number of tokens of one: `values` float32 [tokens]."""
        row = self._row[request_id]
        at = int(self._counts[row])
        if at + len(values) > self._values.shape[1]:
            self._widen(len(values))
        self._values[row, at : at + len(values)] = values
        self._counts[row] = at + len(values)

    def take(self, request_id: str) -> bytes:
        """All of a request's, which is over; 4 bytes a token."""
        row = self._row.pop(request_id)
        self._free.append(row)
        return self._values[row, : self._counts[row]].tobytes()

    def _widen(self, least: int) -> None:
        more = np.zeros((len(self._counts), max(least, self._values.shape[1])), np.float32)
        self._values = np.concatenate([self._values, more], axis=1)
