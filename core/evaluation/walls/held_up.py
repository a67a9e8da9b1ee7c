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


def below(root: int) -> tuple[int, ...]:
    """The processes that descend from one."""
    with contextlib.suppress(psutil.Error, OSError):
        return tuple(child.pid for child in psutil.Process(root).children(recursive=True))
    return ()


class HeldUp:
    """From now on, of all that descends from one process and of the calling thread, which works for it.

    `standing` are the descendants that are there already: a zygote that was started on a busy machine waited for
    seconds while it imported torch, and that is none of its children's time."""

    def __init__(self, root: int, standing: tuple[int, ...] = ()) -> None:
        self._root, self._us = root, (str(root), f"self/task/{threading.get_native_id()}")
        self._waited = _waited((*self._us, *map(str, standing)))
        self._before = sum(self._waited.values())

    def seconds(self) -> float:
        """So far; never less than it was."""
        for name, waited_s in _waited((*self._us, *map(str, below(self._root)))).items():
            self._waited[name] = max(waited_s, self._waited.get(name, 0.0))
        return max(0.0, sum(self._waited.values()) - self._before)


def _waited(places: tuple[str, ...]) -> dict[str, float]:
    """Place below /proc -> seconds that its thread waited since it began."""
    found = {}
    for place in places:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{place}/schedstat") as file:
            found[place] = int(file.read().split()[1]) / 1e9
    return found
