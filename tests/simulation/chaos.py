"""What a simulated run suffers: processes that are killed at any await, lost connections, outages of the broker.

A `Process` is a coroutine function with a connection of its own. `kill` ends it as SIGKILL would: its connection says
and hears nothing more, and none of its clean-up has an effect on the bus. It starts again after a while.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from bus.broker import BusError
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer

Program = Callable[[MemoryBroker], Awaitable[None]]


class Process:
    """One simulated process; `deaths` counts how often it was killed."""

    def __init__(self, server: MemoryServer, name: str, program: Program) -> None:
        self.name = name
        self.deaths = 0
        self._is_done = False
        self._server = server
        self._program = program
        self._task: asyncio.Task | None = None
        self._broker: MemoryBroker | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if not self.is_running and not self._is_done:
            self._broker = MemoryBroker(self._server, f"{self.name}/{self.deaths}")
            self._task = asyncio.create_task(self._live(self._broker), name=self.name)

    async def _live(self, broker: MemoryBroker) -> None:
        try:
            await self._program(broker)
            self._is_done = True
        except (BusError, TimeoutError):
            # An unexpected error ends the process; its supervisor starts it again.
            broker.kill()

    def kill(self) -> None:
        if self._task is not None and self._broker is not None and self.is_running:
            self.deaths += 1
            self._broker.kill()
            self._task.cancel()

    async def cut(self, duration_s: float) -> None:
        """Lose the connection for a while."""
        broker = self._broker
        if broker is not None and self.is_running:
            broker.cut()
            await asyncio.sleep(duration_s)
            broker.heal()

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            [result] = await asyncio.gather(self._task, return_exceptions=True)
            if isinstance(result, Exception):
                raise result


async def rage(
    rng: random.Random,
    server: MemoryServer,
    processes: list[Process],
    *,
    until_s: float,
    every_s: float,
    outages: bool = True,
) -> None:
    """Random kills, cuts and outages until then; afterwards everything is up and stays up."""
    loop = asyncio.get_running_loop()
    while loop.time() < until_s:
        await asyncio.sleep(rng.expovariate(1 / every_s))
        victim = rng.choice(processes)
        what = rng.random()
        if what < 0.6:
            victim.kill()
        elif what < 0.8:
            await victim.cut(rng.uniform(0.01, 3.0))
        elif outages:
            server.stop()
            await asyncio.sleep(rng.uniform(0.01, 5.0))
            server.start()
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        for process in processes:
            process.start()
    for process in processes:
        process.start()


def latency(rng: random.Random) -> Callable[[], float]:
    """A network that is mostly quick."""
    return lambda: rng.uniform(0.0002, 0.002) if rng.random() < 0.95 else rng.uniform(0.002, 0.2)
