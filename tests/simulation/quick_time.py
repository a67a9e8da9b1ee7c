"""An event loop whose clock runs faster than the machine's, for programs that poll a bus in memory.

    result = run(coroutine, limit_s=40)

Unlike virtual time it goes with threads. Deadlines of the loop come sooner too, so none that may fail a test should be
short; `limit_s` is real time.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
TIMES = 5.0
"""Seconds of the loop in one of the machine's."""


class _QuickSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list:
        return super().select(timeout if timeout is None else timeout / TIMES)


class QuickTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__(_QuickSelector())

    def time(self) -> float:
        return TIMES * time.monotonic()


def run(coroutine: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Run it on a loop of its own. Raises TimeoutError when it takes longer than `limit_s`, in real seconds."""

    async def bounded() -> T:
        async with asyncio.timeout(TIMES * limit_s):
            return await coroutine

    with asyncio.Runner(loop_factory=QuickTimeLoop) as runner:
        return runner.run(bounded())
