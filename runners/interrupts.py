"""Ctrl-C in a command that works for long: said at once in one line, stopped in order, ended now by a second one.

Threads that load a model or import torch can't be cancelled, and an interpreter that ends in order waits for them, for
minutes, or shows their traces. So when what was started has been stopped, or had its time, the process ends as it is.
What it started dies with it: judges' workers and the engine's processes watch for that.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from os import _exit
from typing import Any, NoReturn

STOPS_S = 10.0
"""For stopping in order."""
INTERRUPTED = 130


def run(command: str, main: "Coroutine[Any, Any, Any]", stopping: str) -> Any:
    """What `main` returns; a Ctrl-C cancels it, and the process ends with 130 when it has cleaned up. Of the main
    thread.

    Args:
        stopping: what has to be stopped, for the person who waits.
    """
    interrupted = False
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)

        async def wait() -> Any:
            return await task

        def stop(*_: object) -> None:
            nonlocal interrupted
            interrupted = True
            end_at_next()
            say(f"kernelmill {command}: interrupted: stopping {stopping}; Ctrl-C again ends it now")
            timer = threading.Timer(STOPS_S, end)
            timer.daemon = True
            timer.start()
            loop.call_soon_threadsafe(task.cancel)

        before = signal.signal(signal.SIGINT, stop)
        try:
            return runner.run(wait())
        finally:
            if interrupted:
                end()
            signal.signal(signal.SIGINT, before)


def end_at_next() -> None:
    """The next Ctrl-C ends the process as it is."""
    signal.signal(signal.SIGINT, lambda *_: end())


@contextlib.contextmanager
def stop_or_end(command: str, stop: Callable[[], None]) -> Iterator[None]:
    """While this lasts the first Ctrl-C, or SIGTERM, calls `stop`, which says so and lets all end in order; the second
    ends this process and all that it started at once. Of the main thread, between whose instructions
    `stop` runs."""
    import psutil  # noqa: F401  before it is needed at once

    asked = False

    def handle(*_: object) -> None:
        nonlocal asked
        if asked:
            end_everything(f"kernelmill {command}: ended at once")
        asked = True
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_everything(line: str) -> NoReturn:
    """This process and all that it started end as they are. What is started meanwhile is found too: who stands still
    starts nothing more."""
    import psutil

    say(line)
    standing: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        while new := [one for one in psutil.Process().children(recursive=True) if one.pid not in standing]:
            for one in new:
                standing[one.pid] = one
                with contextlib.suppress(psutil.Error):
                    one.suspend()
    for one in standing.values():
        with contextlib.suppress(psutil.Error):  # of another user in a sandbox: it dies with its parent
            one.kill()
    end()


def say(line: str) -> None:
    """On stderr at once, also from a signal's handler, where a buffered stream may be in the middle of a line."""
    os.write(2, f"{line}\n".encode())


def end(line: str = "") -> NoReturn:
    """The process ends as it is."""
    try:
        if line:
            say(line)
        sys.stdout.flush()
    finally:
        _exit(INTERRUPTED)
