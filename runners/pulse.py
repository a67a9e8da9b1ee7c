"""A line on stderr now and then from a command that would keep silent: where it stands, in plain lines for any log.

with Pulse(lambda: f"evaluate: {done} of {total} episodes") as pulse:
    ...
    pulse.said()        # something was printed: the next line is due EVERY_S from here
"""

import threading
import time
from collections.abc import Callable

from runners.interrupts import say

EVERY_S = 30.0


class Pulse:
    """Calls `tell` in a thread of its own, so that a loop or a library that is busy does not keep it from speaking."""

    def __init__(self, tell: Callable[[], str], every_s: float | None = None) -> None:
        self._tell = tell
        self._every_s = EVERY_S if every_s is None else every_s
        self._due = time.monotonic() + self._every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="pulse", daemon=True)

    def said(self) -> None:
        self._due = time.monotonic() + self._every_s

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _speak(self) -> None:
        while not self._over.wait(max(0.01, self._due - time.monotonic())):
            if time.monotonic() >= self._due:
                say(self._tell())  # not by a buffered stream: a process may be forked at this moment
                self.said()


def lasting(seconds: float) -> str:
    """`48 s`, `5 min 10 s`, `2 h 05 min`"""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
