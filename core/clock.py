"""Time and randomness come in from outside, so that decisions can be replayed and simulated.

Nothing in `core` calls `time.time()` or `random` for a decision: it is handed a `Clock` (and, where it draws, a
seeded generator). `SystemClock` is what processes use; tests and the simulation pass one that they move by hand.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings, both in seconds."""

    def now(self) -> float:
        """Wall time since the epoch; for stamps that people and other machines read."""
        ...

    def monotonic(self) -> float:
        """Time that never steps back; for deadlines and durations."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self, start: float = 0.0) -> None:
        self._at = start

    def now(self) -> float:
        return self._at

    def monotonic(self) -> float:
        return self._at

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock can't go back: got {seconds} s")
        self._at += seconds
