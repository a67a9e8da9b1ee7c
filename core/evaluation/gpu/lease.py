"""Who may use a GPU when: one process measures alone, or several do other work on it at once.

    with lease(device, alone=True):   timed blocks: nobody else's calls, copies and comparisons run on this GPU
    with lease(device):               calls of what has been called before; outputs copied and compared
    with first_call(device):          a first call, which compiles for a second and uses the GPU for a moment

File locks, one per GPU of a machine: the kernel lets go of them when a process dies. A gate keeps newcomers out while
somebody waits to measure, so that measuring is never starved. First calls wait for no lease, or compiling would not
overlap with measuring; who measures sees them by a `Watch` and knows which of its blocks they may have disturbed
(timing.disturbed). Who was disturbed again and again keeps them away for once (`Watch.kept_away`). Not covered:
contexts that are made.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from typing import IO, ClassVar

import torch

POLL_S = 0.01


def alone_s() -> float:
    """Seconds that this process has had a GPU to itself, since it started: so much of a card's time a candidate costs,
    however many workers there are."""
    return Held.alone_s


@cache
def _path(device: str) -> str:
    name = "cpu"
    if device != "cpu":
        name = str(torch.cuda.get_device_properties(torch.device(device).index or 0).uuid)
    return os.path.join(tempfile.gettempdir(), f"kernelmill-{os.getuid()}-gpu-{name}")


class Held:
    """A lease that stands."""

    alone_s: ClassVar[float] = 0.0
    """Of all that this process has given back."""

    def __init__(self, gate: IO[str], lock: IO[str], alone: bool, device: str = "cpu") -> None:
        self._gate, self._lock, self._kind = gate, lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        self._device = device
        self._since = 0.0

    def take(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._lock, self._kind)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._since = time.perf_counter()

    def give(self) -> None:
        if self._kind == fcntl.LOCK_EX:
            Held.alone_s += time.perf_counter() - self._since
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def pause(self) -> None:
        """Let those go first who wait by now; this process must have nothing left to do on the GPU."""
        self.give()
        self.take()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Others may measure while this process works on the CPU alone; what it began on the GPU is done before."""
        if self._device != "cpu":
            torch.cuda.synchronize(torch.device(self._device))
        self.give()
        try:
            yield
        finally:
            self.take()


@contextlib.contextmanager
def lease(device: str, alone: bool = False) -> Iterator[Held]:
    """Wait for the GPU; never take one inside another."""
    path = _path(device)
    with open(f"{path}.gate", "w") as gate, open(path, "w") as lock:
        held = Held(gate, lock, alone, device)
        held.take()
        try:
            yield held
        finally:  # said aloud: a process forked meanwhile has the file too, and would hold the lock on
            held.give()


@contextlib.contextmanager
def first_call(device: str) -> Iterator[None]:
    """Let others see that something of this process may use the GPU at any moment; waits while they are kept away.
    Never under a lease: who keeps first calls away may wait for that."""
    path = _path(device)
    with open(f"{path}.first-gate", "w") as gate, open(f"{path}.first", "ab") as file:
        fcntl.flock(gate, fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        file.write(b".")  # the file's size counts first calls: one that is over before somebody looks is seen too
        file.flush()
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


class Watch:
    """Sees other processes' first calls; `look` before and after tells whether there were any between.

    Not for a process that is in a first call itself.
    """

    def __init__(self, device: str) -> None:
        self._path = _path(device)
        self._file = open(f"{self._path}.first", "ab")  # noqa: SIM115
        self._seen = self._count()

    def look(self) -> bool:
        """Whether somebody is in a first call, or was since the last look."""
        before, self._seen = self._seen, self._count()
        return self._inside() or self._seen != before

    def _inside(self) -> bool:
        """Whether somebody is in a first call."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    @contextlib.contextmanager
    def kept_away(self, most_s: float) -> Iterator[bool]:
        """No new first calls from here on, and none that runs once this is entered; those are waited for at most
        `most_s`, and where they go on longer, nobody is kept away. Whether there are none. Take no lease before, or
        they may wait for it in turn."""
        with open(f"{self._path}.first-gate", "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)  # who has been let in through it is in a first call by now
            until = time.monotonic() + most_s
            while (inside := self._inside()) and time.monotonic() < until:
                time.sleep(POLL_S)
            if inside:
                fcntl.flock(gate, fcntl.LOCK_UN)
            try:
                yield not inside
            finally:
                fcntl.flock(gate, fcntl.LOCK_UN)

    def _count(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()
