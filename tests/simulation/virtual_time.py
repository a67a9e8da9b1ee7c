"""An event loop whose time jumps: when nothing can run, the clock moves to the next timer at once.

    result = run(main, limit_s=3600)      # main: () -> coroutine; an hour passes in milliseconds

The order in which things happen depends on the program and its seeds alone, so equal seeds give equal runs. Nothing may
wait for the outside world: a loop that would sleep for ever raises Stuck, one that passes `limit_s` raises TooLong.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH = 1_700_000_000.0
"""Wall time at which every run starts."""


class Stuck(RuntimeError):
    """Every task waits and no timer is set."""


class TooLong(RuntimeError):
    """The run went on beyond its limit of virtual time."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self, limit_s: float) -> None:
        self._now = 0.0
        self._limit_s = limit_s
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        return self._now

    def _jump(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            waiting = sorted(task.get_name() for task in asyncio.all_tasks(self) if not task.done())
            raise Stuck(f"at {self._now} s every task waits for ever: {', '.join(waiting)}")
        self._now += max(0.0, timeout_s)
        if self._now > self._limit_s:
            raise TooLong(f"not done after {self._limit_s} s of virtual time")


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, tells the loop to move its clock. The outside world is never looked at."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list:
        if timeout is None or timeout > 0:
            self._jump(timeout)
        return []


class LoopClock:
    """`core.clock.Clock` of the running virtual-time loop."""

    def now(self) -> float:
        return EPOCH + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def run(main: Callable[[], Coroutine[Any, Any, T]], limit_s: float = 24 * 3600.0) -> T:
    """Run `main()` to its end on a loop of its own; leftover tasks are cancelled."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit_s)) as runner:
        return runner.run(main())
