"""A limit on the time of code that runs in this process: a task's reference may loop or sleep for ever.

It interrupts Python, not one long operator in C++. Signals belong to the main thread: elsewhere there is no limit (a
worker judges in its main thread, and the pool ends a worker that is silent for too long).
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class TookTooLong(BaseException):
    """Not an Exception: the code that is ended may catch those."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TookTooLong inside the block after `seconds`, and again each second while it is caught there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
