"""Ctrl-C in a command that runs an event loop: said at once in one line, stopped in order, ended now by a second one.

Threads that load a model or import torch can't be cancelled, and an interpreter that ends in order waits for them, for
minutes, or shows their traces. So when what was started has been stopped, or had its time, the process ends as it is.
What it started dies with it: judges' workers and the engine's processes watch for that.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
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
        os._exit(INTERRUPTED)
