"""Whether somebody else's kernels run on the GPU, found out without asking anybody.

A lease keeps our own timed blocks apart. It can't stop a kernel that was launched before: a candidate's first call
compiles for seconds, so it is not under the lease, and its kernel may never end. Two contexts take turns of
milliseconds, so a fill of a buffer that takes ten turns reads about twice its usual time then. Whoever measures looks
before, waits until the GPU is quiet, and looks again after; what was disturbed is measured again. A kernel that began
after the first look and ended before the last one shows in glances between (clock.Clock.spoilt).

On the CPU there are no turns to see, and it is always quiet.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
FILL_MB, FILLS = 64, 1000
"""Some twenty milliseconds on a data centre's GPU."""
BRIEF = 250
"""Fills of a glance: a few milliseconds, in which another context has two turns."""
BUSY = 1.35
"""Times the usual reading: half-way to what one more context makes of it."""
LOOKS = 5
"""A GPU that was idle is slow for a moment; a busy one is slow every time."""
AGAIN = 3


def is_busy(readings_ms: list[float], usual_ms: float) -> bool:
    """Whether all of these readings are those of a GPU that others use."""
    return usual_ms > 0 and bool(readings_ms) and min(readings_ms) > BUSY * usual_ms


class NeverQuietError(TimeoutError):
    """Kernels of other processes ran all the time that was waited: one of them may be the candidate's own."""


class Quiet:
    """One process's look at one GPU. `usual_ms` is the shared lowest reading; `learn` is told a lower one."""

    def __init__(self, device: str, usual_ms: Callable[[], float], learn: Callable[[float], None]) -> None:
        self._device, self._usual_ms, self._learn = device, usual_ms, learn
        self._buffer: Any = None
        self.waited_s = 0.0
        """In all."""
        self.measured_again = 0
        self.blocks_again = 0
        self.looked = False
        """Whether a measurement was watched since this was last set to False."""

    def reading(self, fills: int = FILLS) -> float:
        """Milliseconds per fill; this process must have nothing else on the device."""
        import torch

        if self._buffer is None:
            self._buffer = torch.empty(FILL_MB * 2**18, dtype=torch.int32, device=self._device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self._device)
        start.record()
        for _ in range(fills):
            self._buffer.zero_()
        end.record()
        torch.cuda.synchronize(self._device)
        return float(start.elapsed_time(end)) / fills

    def calibrate(self) -> None:
        """Once at a worker's start."""
        if self._device != "cpu":
            self._learn(min(self.reading() for _ in range(LOOKS)))

    def busy(self) -> bool:
        if self._device == "cpu":
            return False
        readings: list[float] = []
        while len(readings) < LOOKS:
            readings.append(self.reading())
            if not is_busy(readings, self._usual_ms()):
                self._learn(min(readings))
                return False
        return True

    def glance(self) -> bool:
        """Whether others' kernels seem to run at this moment: less sure than `busy`, and sooner over."""
        return self._device != "cpu" and all(is_busy([self.reading(BRIEF)], self._usual_ms()) for _ in range(2))

    def calm_down(self, most_s: float) -> None:
        """Wait for quiet after a glance; a block is made again then. Raises NeverQuietError."""
        self.blocks_again += 1
        if not self.wait(most_s):
            raise NeverQuietError(f"somebody else's kernels ran on {self._device} for {most_s:.0f} s")

    def wait(self, most_s: float) -> bool:
        """Until nobody else's kernels run; False when they still do after `most_s`."""
        started = time.monotonic()
        while self.busy():
            if time.monotonic() - started > most_s:
                return False
            time.sleep(0.05)
        self.waited_s += time.monotonic() - started
        return True

    def around(self, measure: Callable[[], T], most_s: float = 120.0) -> T:
        """What `measure` gives on a quiet GPU. Under the lease, alone; `most_s` is a candidate's longest life.

        Raises TimeoutError when there is no quiet; NeverQuietError where there was none at any moment.
        """
        self.looked = True
        for _ in range(AGAIN):
            if not self.wait(most_s):
                raise NeverQuietError(f"somebody else's kernels ran on {self._device} for {most_s:.0f} s")
            result = measure()
            if not self.busy():
                return result
            self.measured_again += 1
        raise TimeoutError(f"somebody else's kernels ran on {self._device} all the time while it was to be measured")
