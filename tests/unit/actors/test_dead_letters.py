"""Work that the broker or a worker gave up: the sampler buries its group with a reason, and the account is even."""

import asyncio
import uuid

import msgspec
import pytest

from actors.prompt_sampler import PromptSampler
from bus import facts, subjects, topology
from bus.messages import Beat, Evaluation, Held, Request
from bus.nats import NatsBroker
from bus.run_bus import RunBus
from bus.server import EmbeddedServer
from bus.worker import Worker
from configs.schema import RunConfig
from core.clock import SystemClock
from core.run_folder import RunFolder
from core.tasks.task import Task

TASK = Task(task_id="t/one", name="one", level=1, origin="t", source="class Model: pass")
GROUP, SIZE = "ab" * 16, 3
DEAD_AFTER_S, ACK_WAIT_S = 1.5, 3600.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


class Scene:
    """A run of its own on the server; `sampler()` watches over it and admits nothing."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.opened = []
        self.config = RunConfig.model_validate(
            {
                "run": {"name": self.run_id},
                "model": {"path": "none"},
                "tasks": {"train": [{"kind": "composed", "count": 2}]},
                "bus": {"beat_s": 0.5, "dead_after_s": DEAD_AFTER_S, "ack_wait_s": ACK_WAIT_S},
            }
        )

    def play(self, main):
        async def begin():
            try:
                await asyncio.wait_for(main(), 60)
            finally:
                for bus in self.opened:
                    await bus.close()

        asyncio.run(begin())

    async def join(self, name, max_deliver=None):
        broker = await NatsBroker.connect(self.server.url, self.server.token, name=name)
        table = topology.topology(
            self.run_id, device_classes=[("triton", "cpu")], ack_wait_s=ACK_WAIT_S, dead_after_s=DEAD_AFTER_S,
            max_worker_deaths=3,
        )  # fmt: skip
        if max_deliver is not None:
            consumers = [msgspec.structs.replace(one, max_deliver=max_deliver) for one in table.consumers]
            table = msgspec.structs.replace(table, consumers=tuple(consumers))
        await broker.ensure(table)
        self.opened.append(RunBus(broker, self.run_id, name))
        return self.opened[-1]

    async def admit(self, bus, group=GROUP):
        one = Request(run_id=bus.run_id, trace=group, group_id=group, admission=0, task=TASK, size=SIZE)
        await bus.fact(
            facts.ADMITTED, group_id=group, admission=0, size=SIZE, task_id="t/one", level=1, role="generator"
        )
        return one

    def sampler(self, bus):
        """What a sampler does beside admitting, until cancelled."""
        actor = PromptSampler(self.config, bus, bus.actor, RunFolder(self.folder / "run"), SystemClock())

        async def nothing_to_admit():
            await actor.stopping.wait()

        actor._admit_until_finished = nothing_to_admit
        return asyncio.create_task(actor.run())


@pytest.fixture
def scene(server, tmp_path):
    return Scene(server, tmp_path)


async def use_up(bus, stream, consumer, times):
    for _ in range(times):
        delivery = await bus.broker.fetch(stream, consumer, 5.0)
        assert delivery is not None
        await delivery.nak()
    assert await bus.broker.fetch(stream, consumer, 0.3) is None


async def buried(bus, size=SIZE):
    """The group's tombstones, when all of them stand."""
    found = []
    while len(found) < size:
        found += await bus.read_episodes(found[-1][0] + 1 if found else 1)
    return [ended.episode for _, ended in found]


async def there(look):
    """What `look` finds, as soon as it finds something."""
    while True:
        if found := await look():
            return found
        await asyncio.sleep(0.02)


async def gone(look):
    async def nothing():
        return not await look()

    await there(nothing)


async def fact(bus, kind):
    at = 1
    while True:
        for seq, one in await bus.read_facts(at):
            at = seq + 1
            if one.kind == kind:
                return one.data


@pytest.mark.parametrize("watching", ["before", "after"])
def test_a_request_that_used_its_deliveries_up_is_buried(scene, watching):
    async def main():
        bus, own = await scene.join("generator-0", max_deliver=2), await scene.join("sampler-0", max_deliver=2)
        work = [scene.sampler(own)] if watching == "before" else []
        await bus.publish_request(await scene.admit(bus))
        await use_up(bus, bus.names.requests, subjects.rollout_consumer(), 2)
        work = work or [scene.sampler(own)]
        episodes = await buried(bus)
        assert {one.end for one in episodes} == {"poison"} and {one.index for one in episodes} == set(range(SIZE))
        assert "delivered 2 times and never finished" in episodes[0].detail
        told = await fact(bus, facts.POISONED)
        assert told["key"] == subjects.request(bus.run_id, GROUP)
        assert (await bus.broker.stream_state(bus.names.requests)).messages == 0
        work[0].cancel()

    scene.play(main)


def test_an_evaluation_that_used_its_deliveries_up_is_answered(scene):
    async def main():
        bus, own = await scene.join("generator-0", max_deliver=2), await scene.join("sampler-0", max_deliver=2)
        work = scene.sampler(own)
        one = Evaluation(run_id=bus.run_id, candidate_key="cd" * 16, task=TASK, candidate="class ModelNew: pass")
        asked = asyncio.create_task(bus.judged(one, timeout_s=30))
        await use_up(bus, bus.names.evaluations, subjects.evaluate_consumer("triton", "cpu"), 2)
        verdict = (await asked).verdict
        assert verdict.kind == "infra" and "delivered 2 times" in verdict.feedback
        work.cancel()

    scene.play(main)


@pytest.mark.parametrize("what", ["requests", "evaluations"])
def test_work_that_no_worker_can_read_is_answered(scene, what):
    async def main():
        bus, own = await scene.join("worker-0"), await scene.join("sampler-0")
        work = scene.sampler(own)
        await scene.admit(bus)
        requests = what == "requests"
        subject = subjects.request(bus.run_id, GROUP)
        if not requests:
            subject = subjects.evaluate(bus.run_id, "triton", "cpu", "cd" * 16)
        await bus.broker.publish(subject, b"\x93not a message")
        names = bus.names
        worker = Worker(
            bus, stream=names.requests if requests else names.evaluations, kind=Request if requests else Evaluation,
            consumer=subjects.rollout_consumer() if requests else subjects.evaluate_consumer("triton", "cpu"),
            handler=None, on_poison=None, slots=1, ack_wait_s=ACK_WAIT_S,
        )  # fmt: skip
        working = asyncio.create_task(worker.run())
        if requests:
            assert {(one.end, one.task_id) for one in await buried(bus)} == {("poison", "t/one")}
        else:
            verdict = await there(lambda: bus.standing_verdict("cd" * 16))
            assert verdict.verdict.kind == "infra"
        worker.stop()
        await working
        work.cancel()

    scene.play(main)


def test_a_sampler_that_starts_again_buries_nothing_twice(scene):
    async def main():
        bus, own = await scene.join("generator-0", max_deliver=1), await scene.join("sampler-0", max_deliver=1)
        work = scene.sampler(own)
        await bus.publish_request(await scene.admit(bus))
        await use_up(bus, bus.names.requests, subjects.rollout_consumer(), 1)
        await buried(bus)
        await fact(bus, facts.POISONED)
        await there(lambda: bus.broker.get(bus.names.sampler, "dead-read"))
        work.cancel()
        await bus.trim_episodes((await bus.broker.stream_state(bus.names.episodes)).last_seq + 1)
        again = scene.sampler(await scene.join("sampler-0", max_deliver=1))
        await asyncio.sleep(1.0)
        assert await bus.standing_episodes(GROUP, SIZE) == set()
        again.cancel()

    scene.play(main)


def beat(bus, life, held=()):
    return Beat(run_id=bus.run_id, kind="generator", actor=bus.actor, pid=1, host="h", at=0.0, held=held, life=life)


@pytest.mark.parametrize("restarted", [False, True])
def test_work_of_a_generator_that_died_with_the_sampler_is_handed_on(scene, restarted):
    """The next sampler's reaper never saw a beat of it; ack_wait is an hour here."""

    async def main():
        dying, other = await scene.join("generator-0"), await scene.join("generator-1")
        await dying.publish_request(await scene.admit(dying))
        delivery = await dying.broker.fetch(dying.names.requests, subjects.rollout_consumer(), 5.0)
        await dying.beat(beat(dying, "first", (Held(stream=delivery.stream, seq=delivery.seq, reply=delivery.reply),)))
        await gone(dying.beats)  # nobody watches while it expires
        alive = asyncio.create_task(keep_alive(await scene.join("generator-0"))) if restarted else None
        work = scene.sampler(await scene.join("sampler-0"))
        delivery = None
        while delivery is None:
            delivery = await other.broker.fetch(other.names.requests, subjects.rollout_consumer(), 1.0)
        assert delivery.deliveries == 2
        told = await fact(other, facts.DIED)
        assert (told["actor"], told["handed_on"]) == ("generator-0", 1)
        await gone(other.holders.all)
        for task in (work, alive):
            if task is not None:
                task.cancel()

    async def keep_alive(bus):
        while True:
            await bus.beat(beat(bus, "second"))
            await asyncio.sleep(0.3)

    scene.play(main)


def test_work_of_a_generator_that_lives_is_left_to_it(scene):
    async def main():
        bus, other = await scene.join("generator-0"), await scene.join("generator-1")
        await bus.publish_request(await scene.admit(bus))
        delivery = await bus.broker.fetch(bus.names.requests, subjects.rollout_consumer(), 5.0)
        held = (Held(stream=delivery.stream, seq=delivery.seq, reply=delivery.reply),)
        work = scene.sampler(await scene.join("sampler-0"))
        for _ in range(12):
            await bus.beat(beat(bus, "first", held))
            assert await other.broker.fetch(other.names.requests, subjects.rollout_consumer(), 0.3) is None
        await delivery.ack()
        await bus.beat(beat(bus, "first"))
        assert await bus.holders.all() == []
        work.cancel()

    scene.play(main)


def test_a_container_that_starts_again_with_the_same_pid_was_dead(scene):
    async def main():
        bus, other = await scene.join("generator-0"), await scene.join("generator-1")
        await bus.publish_request(await scene.admit(bus))
        work = scene.sampler(await scene.join("sampler-0"))
        delivery = await bus.broker.fetch(bus.names.requests, subjects.rollout_consumer(), 5.0)
        held = (Held(stream=delivery.stream, seq=delivery.seq, reply=delivery.reply),)
        await bus.beat(beat(bus, "first", held))
        next_one = await scene.join("generator-0")
        delivery = None
        while delivery is None:
            await next_one.beat(beat(next_one, "second"))
            delivery = await other.broker.fetch(other.names.requests, subjects.rollout_consumer(), 0.3)
        assert delivery.deliveries == 2
        work.cancel()

    scene.play(main)
