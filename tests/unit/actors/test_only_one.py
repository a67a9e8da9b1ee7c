"""Of two actors of one run that there should be one of, the later one leaves with a line; one that died keeps nobody
waiting for long."""

import asyncio

import pytest
from structlog.testing import capture_logs

from actors.actor import Actor
from actors.checkpointer import Checkpointer
from actors.learner import Learner
from actors.only_one import AnotherOne
from actors.prompt_sampler import PromptSampler
from actors.recorder import Recorder
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.reaper import leaving
from bus.run_bus import RunBus
from bus.topology import topology
from configs.schema import RunConfig
from core.clock import SystemClock
from core.run_folder import RunFolder
from runners.cli import is_users_fault

CONFIG = RunConfig.model_validate(
    {"model": {"path": "m"}, "run": {"name": "run"}, "bus": {"beat_s": 0.1, "dead_after_s": 1.0}}
)


@pytest.fixture
def sampler(tmp_path):
    server = MemoryServer(SystemClock())

    async def begin(name):
        broker = MemoryBroker(server, name)
        await broker.ensure(
            topology("run", device_classes=[("triton", "cpu")], ack_wait_s=30, dead_after_s=1.0, max_worker_deaths=3)
        )
        bus = RunBus(broker, "run", name)
        one = PromptSampler(CONFIG, bus, name, RunFolder(tmp_path / name), SystemClock())
        return one, asyncio.create_task(one.live())

    return begin


async def _admits(one):
    async with asyncio.timeout(20):
        while not one.gauges()["admitted_groups"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _end(one, life):
    one.stopping.set()
    await life


def test_a_second_one_leaves_and_the_first_goes_on(sampler):
    async def main():
        first, life = await sampler("sampler-b")
        await _admits(first)
        for name in ("sampler-a", "sampler-c"):
            _, second = await sampler(name)
            with pytest.raises(AnotherOne, match="has a sampler: sampler-b") as caught:
                await second
            assert is_users_fault(caught.value)
        assert not life.done()
        await _end(first, life)

    asyncio.run(main())


def test_one_takes_the_place_of_one_that_died_or_left(sampler):
    async def main():
        died, life = await sampler("sampler-a")
        await _admits(died)
        life.cancel()
        second, life = await sampler("sampler-b")
        await _admits(second)
        await _end(second, life)
        third, life = await sampler("sampler-c")
        await _admits(third)
        await _end(third, life)

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(0, 12, 2))
def test_of_two_that_begin_at_once_one_stays(sampler, turns):
    """However far one is ahead of the other."""

    async def main():
        lives = [await sampler("sampler-b")]
        for _ in range(turns):
            await asyncio.sleep(0)
        lives.append(await sampler("sampler-a"))
        done, _ = await asyncio.wait([life for _, life in lives], timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert [type(life.exception()) for life in done] == [AnotherOne]
        ((stays, life),) = [(one, life) for one, life in lives if life not in done]
        await _admits(stays)
        await _end(stays, life)

    asyncio.run(main())


class Waits(Actor):
    only_one = True

    async def run(self):
        self.began = True
        await self.stopping.wait()


SINGLE = [PromptSampler, Learner, Recorder, Checkpointer]


def stand_in(actor):
    return type("StandIn", (Waits,), {"kind": actor.kind, "only_one": actor.only_one})


async def begin(kind, server, name, folder):
    broker = MemoryBroker(server, name)
    await broker.ensure(
        topology("run", device_classes=[("triton", "cpu")], ack_wait_s=30, dead_after_s=1.0, max_worker_deaths=3)
    )
    made = kind(CONFIG, RunBus(broker, "run", name), name, RunFolder(folder / name), SystemClock())
    return made, asyncio.create_task(made.live())


@pytest.mark.parametrize("actor", SINGLE)
def test_of_these_a_run_has_one(actor, tmp_path):
    """Whatever they do, they do nothing of it before they are alone, and say nothing but why they leave."""

    async def main():
        server = MemoryServer(SystemClock())
        first, life = await begin(stand_in(actor), server, "one", tmp_path)
        async with asyncio.timeout(20):
            while not hasattr(first, "began"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with capture_logs() as said:
            second, refused = await begin(stand_in(actor), server, "two", tmp_path)
            with pytest.raises(AnotherOne, match=f"run 'run' has a {actor.kind}: one "):
                await refused
        assert not hasattr(second, "began") and said == []
        assert [leaving(beat) for beat in await second.bus.beats() if beat.actor == "two"] == [True], "it is no death"
        await _end(first, life)
        facts = [(fact.kind, fact.actor) for _, fact in await first.bus.read_facts(1)]
        assert facts == [("joined", "one"), ("left", "one")]

    asyncio.run(main())


@pytest.mark.parametrize("actor", SINGLE)
def test_one_that_is_stopped_while_it_waits_was_never_here(actor, tmp_path):
    async def main():
        server = MemoryServer(SystemClock())
        died, life = await begin(stand_in(actor), server, "one", tmp_path)
        async with asyncio.timeout(20):
            while not hasattr(died, "began"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        life.cancel()
        with capture_logs() as said:
            second, waits = await begin(stand_in(actor), server, "two", tmp_path)
            await asyncio.sleep(0.1)
            await _end(second, waits)
        told = [fact.kind for _, fact in await second.bus.read_facts(1) if fact.actor == "two"]
        if hasattr(second, "began"):  # its turn had come
            assert told == ["joined", "left"]
        else:
            assert told == [] and said == []

    asyncio.run(main())
