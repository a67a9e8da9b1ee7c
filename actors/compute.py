"""One call queue in front of the main thread, where torch lives while the bus loop has a thread of its own.

Torch beside an event loop starves it (a step holds the thread for seconds), and collectives and signal handlers want
the main thread. So: `serve` runs in the main thread and does one call after the other; coroutines on the bus loop
await `call`. Closing wakes everybody.
"""

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class MainThreadCalls:
    """Calls are done in the order in which they were made, one at a time."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of `function`, done in the main thread; raises what it raises."""
        future: Future[R] = Future()
        self._queue.put((future, lambda: function(*args, **kwargs)))
        return await asyncio.wrap_future(future)

    def serve(self) -> None:
        """Do calls until `close`."""
        while (item := self._queue.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        self._queue.put(None)
