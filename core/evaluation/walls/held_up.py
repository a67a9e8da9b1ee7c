"""How long confined processes wanted a processor and had none: a busy machine is not the candidate's fault.

Linux counts it for each thread (/proc/PID/schedstat: nanoseconds run, nanoseconds waited). Of a process only its first
thread counts, so threads of a candidate's own that stand in each other's way win it nothing; what sleeps or waits for
an answer wants no processor and gets no more time either. Where the kernel does not count, nobody was held up.
"""

import contextlib
import threading

import psutil

MOST = 3.0
"""A job gets this many times its own wall on top, at most."""
LOOK_S = 1.0
"""Between two looks: what a process that ended waited since the last one is not seen."""


def most_s(wall_s: float) -> float:
    """The longest that a job with a wall of so many seconds may take on a busy machine."""
    return (1 + MOST) * wall_s


class HeldUp:
    """From now on, of all that descends from one process and of the calling thread, which works for it."""

    def __init__(self, root: int) -> None:
        self._root, self._us = root, (str(root), f"self/task/{threading.get_native_id()}")
        self._waited: dict[str, float] = {}
        self._before = sum(_waited(self._us).values())

    def seconds(self) -> float:
        """So far; never less than it was."""
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error, OSError):
            children = psutil.Process(self._root).children(recursive=True)
        for name, waited_s in _waited((*self._us, *(str(child.pid) for child in children))).items():
            self._waited[name] = max(waited_s, self._waited.get(name, 0.0))
        return max(0.0, sum(self._waited.values()) - self._before)


def _waited(places: tuple[str, ...]) -> dict[str, float]:
    """Place below /proc -> seconds that its thread waited since it began."""
    found = {}
    for place in places:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{place}/schedstat") as file:
            found[place] = int(file.read().split()[1]) / 1e9
    return found
