"""Whoever waits longer than its deadline says so, once per wait and rarely again."""

import asyncio
import re

import pytest

from actors import rollout_generator, stalled
from actors.actor import Actor
from bus import facts
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.run_bus import RunBus
from bus.topology import topology
from configs.schema import RunConfig
from core.clock import SystemClock
from core.run_folder import RunFolder
from tests.simulation import virtual_time
from tests.unit.actors.generator_stage import Stage
from tests.unit.actors.learner_stage import LearnerStage, healthy

TABLE = {"device_classes": [("triton", "cpu")], "ack_wait_s": 60, "dead_after_s": 7, "max_worker_deaths": 3}


async def texts(bus):
    return [fact.data["text"] for _, fact in await bus.read_facts(1, timeout_s=0.1) if fact.kind == facts.STALLED]


async def on_memory(clock):
    server = MemoryServer(clock)
    bus = RunBus(MemoryBroker(server, "learner-0"), "run", "learner-0", clock)
    await bus.broker.ensure(topology("run", **TABLE))
    return server, bus


def test_a_wait_is_told_at_its_deadline_and_rarely_again():
    async def main():
        _, bus = await on_memory(virtual_time.LoopClock())
        here = 0
        async with stalled.watched(bus, lambda: f"4 groups, {here} are here", after_s=900, again_s=1800):
            await asyncio.sleep(899)
            assert await texts(bus) == []
            here = 3
            await asyncio.sleep(2000)
        await asyncio.sleep(10_000)
        async with stalled.watched(bus, lambda: "nothing", after_s=900):
            await asyncio.sleep(100)
        assert await texts(bus) == ["learner-0 has waited 900 s for 4 groups, 3 are here",
                                    "learner-0 has waited 2700 s for 4 groups, 3 are here"]  # fmt: skip

    virtual_time.run(main)


def test_a_broker_that_is_away_holds_nobody_up():
    async def main():
        server, bus = await on_memory(virtual_time.LoopClock())
        server.stop()
        async with asyncio.timeout(60):
            await stalled.tell(bus, "learner-0 waited 1 s for luck")
        server.start()
        assert await texts(bus) == []

    virtual_time.run(main)


class Waiting(Actor):
    kind = "evaluator"

    def __init__(self, *args, error, **kwargs):
        super().__init__(*args, **kwargs)
        self.error = error

    async def run(self):
        raise self.error


def caused(error, cause):
    error.__cause__ = cause
    return error


LATE = TimeoutError("evaluator-0 waited 5 s for luck")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LATE, ["evaluator-0 waited 5 s for luck"]),
        (TimeoutError("vLLM took 60 s to swap"), ["evaluator-0: vLLM took 60 s to swap"]),
        (caused(RuntimeError("engine"), LATE), ["evaluator-0 waited 5 s for luck"]),
        (ExceptionGroup("tasks", [ValueError(), ExceptionGroup("more", [LATE])]), ["evaluator-0 waited 5 s for luck"]),
        (ValueError("no"), []),
    ],
)
def test_an_actor_that_a_deadline_ends_says_so(tmp_path, error, told):
    async def main():
        server, bus = await on_memory(SystemClock())
        config = RunConfig.model_validate({"model": {"path": "none"}})
        own = RunBus(MemoryBroker(server, "evaluator-0"), "run", "evaluator-0")
        with pytest.raises(type(error)):
            await Waiting(config, own, "evaluator-0", RunFolder(tmp_path), SystemClock(), error=error).live()
        assert await texts(bus) == told

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_generator_without_a_first_policy_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_generator, "FIRST_POLICY_TIMEOUT_S", 0.2)
    stage = Stage(tmp_path)

    async def main():
        await stage.open()
        own = RunBus(MemoryBroker(stage.server, "generator-1"), "run", "generator-1")
        actor = rollout_generator.RolloutGenerator(
            stage.config, own, "generator-1", RunFolder(tmp_path / "run"), SystemClock()
        )
        with pytest.raises(BaseException, match=r"first policy|TaskGroup"):
            await actor.live()
        assert await texts(stage.bus) == ["generator-1 waited 0 s for the learner's first policy"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_weights_that_do_not_come_are_told_once(tmp_path):
    stage = Stage(tmp_path)
    weights = stage.config.weights.model_copy(update={"apply_timeout_s": 2})
    stage.config = stage.config.model_copy(update={"weights": weights})

    async def main():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (actor, work):

            async def holds():
                return actor.policy_held()[0] == 0

            await stage.until(work, holds)
            await stage.policy(1, str(tmp_path / "nowhere"), "none", "adapter-blob:1/i1-v1")
            await asyncio.wait({work})  # by then it ends
        told = await texts(stage.bus)
        assert len(told) == 1 and re.match(r"generator-1, for version 1: 0 pieces of blob i1-v1 at 1", told[0]), told

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_learner_without_groups_says_so_once_and_goes_on(tmp_path):
    with LearnerStage(tmp_path, episodes={"deadline_s": 0.5}) as stage:

        async def main():
            async with stage.learner() as (_, work):
                await stage.send(healthy(0))

                async def told():
                    return await texts(stage.bus)

                await stage.until(work, told)
                [text] = await told()
                assert re.fullmatch(r"learner has waited \d+ s for 2 complete groups; \d episodes wait", text), text
                await stage.send(healthy(1))
                await stage.steps(work, 1)

        stage.play(main)
