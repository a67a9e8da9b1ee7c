"""The two brokers under one roof. A test that is a coroutine and asks for `world` runs once over each of them."""

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.broker import Broker
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.nats import NatsBroker
from bus.server import EmbeddedServer
from tests.simulation import virtual_time


class MemoryWorld:
    """In-memory server, virtual time."""

    kind = "memory"

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def begin() -> None:
            self.server = MemoryServer(virtual_time.LoopClock())
            await main

        virtual_time.run(begin)

    async def connect(self, name: str = "test") -> Broker:
        return MemoryBroker(self.server, name)

    def crash(self) -> None:
        self.server.stop()

    def restart(self) -> None:
        self.server.start()


class NatsWorld:
    """A real nats-server, real time; a crash is kill -9."""

    kind = "nats"

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer(folder)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.server.start()
        self.brokers: list[NatsBroker] = []

        async def begin() -> None:
            try:
                await main
            finally:
                for broker in self.brokers:
                    await broker.close()

        try:
            asyncio.run(begin())
        finally:
            self.server.stop()

    async def connect(self, name: str = "test") -> Broker:
        broker = await NatsBroker.connect(self.server.url, self.server.token, name=name)
        self.brokers.append(broker)
        return broker

    def crash(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.start()


World = MemoryWorld | NatsWorld


@pytest.fixture(params=["memory", "nats"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield MemoryWorld() if request.param == "memory" else NatsWorld(tmp_path / "nats")


@pytest.fixture
def nats_world(tmp_path: Path) -> NatsWorld:
    return NatsWorld(tmp_path / "nats")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Coroutine tests run in their world."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    place = wanted.get("world") or wanted["nats_world"]
    place.run(pyfuncitem.obj(**wanted))
    return True
