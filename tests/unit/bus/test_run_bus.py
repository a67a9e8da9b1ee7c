"""The typed bus over a real server: idempotent publishing, verdicts, workers that fail, actors that die."""

import asyncio
import json
import os
import urllib.request
import uuid

import msgspec
import pytest

from bus import codec, subjects
from bus.messages import Beat, Blob, Dead, Ended, Evaluation, Fact, Held, Judged, Request, Step
from bus.nats import NatsBroker
from bus.reaper import Reaper
from bus.run_bus import BLOB_BYTES, RunBus
from bus.server import EmbeddedServer
from bus.topology import topology
from bus.worker import Retry, Worker
from core.episodes.episode import tombstone
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

TASK = Task(task_id="t/one", name="one", level=1, origin="t", source="class Model: pass")
GROUP = "ab" * 16


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


def on_bus(server):
    """Run a coroutine function with a way to open connections to a run of its own."""

    def decorate(body):
        async def with_bus():
            run_id = f"run-{uuid.uuid4().hex[:8]}"
            opened = []

            async def join(actor):
                broker = await NatsBroker.connect(server.url, server.token, name=actor, deadline_s=10)
                await broker.ensure(
                    topology(
                        run_id,
                        device_classes=[("triton", "cpu")],
                        ack_wait_s=30.0,
                        dead_after_s=2.0,
                        max_worker_deaths=3,
                    )
                )
                opened.append(RunBus(broker, run_id, actor))
                return opened[-1]

            try:
                await asyncio.wait_for(body(join), 60)
            finally:
                for bus in opened:
                    await bus.close()

        asyncio.run(with_bus())

    return decorate


def request(bus, group_id=GROUP, size=2):
    return Request(run_id=bus.run_id, trace=group_id, group_id=group_id, admission=0, task=TASK, size=size)


def evaluation(bus, key="cd" * 16):
    return Evaluation(run_id=bus.run_id, candidate_key=key, task=TASK, candidate="class ModelNew: pass")


def judged(bus, key="cd" * 16, kind="pass"):
    return Judged(run_id=bus.run_id, verdict=Verdict(candidate_key=key, kind=kind))


def rollout(bus, handler, *, on_poison=None, slots=1, max_failures=3):
    async def no_poison(message, why):
        raise AssertionError(why)

    return Worker(
        bus,
        stream=bus.names.requests,
        consumer=subjects.rollout_consumer(),
        kind=Request,
        handler=handler,
        on_poison=on_poison or no_poison,
        slots=slots,
        ack_wait_s=30.0,
        max_failures=max_failures,
    )


def test_the_same_work_is_published_once(server):
    @on_bus(server)
    async def body(join):
        bus = await join("sampler-0")
        assert await bus.publish_request(request(bus))
        assert not await bus.publish_request(request(bus))
        ended = Ended(run_id=bus.run_id, episode=tombstone(GROUP, 1, "t/one", "infra"), admission=0, size=2)
        assert await bus.publish_ended(ended)
        assert not await bus.publish_ended(ended)
        assert await bus.standing_episodes(GROUP, 2) == {1}
        assert [message for _, message in await bus.read_episodes(1)] == [ended]


def test_a_verdict_is_waited_for_and_then_stands(server):
    @on_bus(server)
    async def body(join):
        generator, evaluator = await join("generator-0"), await join("evaluator-0")

        async def judge_one():
            while (
                delivery := await evaluator.broker.fetch(
                    evaluator.names.evaluations, subjects.evaluate_consumer("triton", "cpu"), 1.0
                )
            ) is None:
                pass
            await evaluator.publish_judged(judged(evaluator))
            await delivery.ack()

        work = asyncio.create_task(judge_one())
        first, second = await asyncio.gather(*(generator.judged(evaluation(generator), timeout_s=10) for _ in range(2)))
        await work
        assert first == second and first.verdict.kind == "pass"
        again = await generator.judged(evaluation(generator), timeout_s=1)
        assert again == first
        with pytest.raises(TimeoutError, match="generator-0 waited"):
            await generator.judged(evaluation(generator, "ef" * 16), timeout_s=0.3)


def test_a_verdict_that_was_missed_live_is_found_by_looking_again(server):
    @on_bus(server)
    async def body(join):
        generator, evaluator = await join("generator-0"), await join("evaluator-0")
        asking = generator.judged_or_stood(evaluation(generator), timeout_s=10, recheck_s=0.2)
        wait = asyncio.create_task(asking)
        while (await generator.broker.stream_state(generator.names.evaluations)).messages == 0:
            pass
        await generator._verdict_subscription.stop()
        await evaluator.publish_judged(judged(evaluator))
        found, stood = await wait
        assert found.verdict.kind == "pass" and not stood
        assert await generator.judged_or_stood(evaluation(generator), timeout_s=10) == (found, True)


def test_a_second_learner_is_fenced(server):
    @on_bus(server)
    async def body(join):
        from bus.broker import SequenceConflict

        old, new = await join("learner-0"), await join("learner-0")
        first = await old.append_step(
            Step(run_id=old.run_id, kind="incarnation", incarnation=0, step=0, version=0), after_seq=0
        )
        await new.append_step(
            Step(run_id=old.run_id, kind="incarnation", incarnation=1, step=0, version=0), after_seq=first
        )
        with pytest.raises(SequenceConflict):
            await old.append_step(
                Step(run_id=old.run_id, kind="step", incarnation=0, step=1, version=1), after_seq=first
            )


def test_what_is_no_message_is_buried_and_the_worker_goes_on(server):
    @on_bus(server)
    async def body(join):
        bus, seen = await join("generator-0"), []
        await bus.broker.publish(subjects.request(bus.run_id, "00" * 16), b"\x93not a request")
        await bus.publish_request(request(bus))

        async def handler(delivery, message):
            seen.append(message.group_id)
            worker.stop()

        worker = rollout(bus, handler)
        await worker.run()
        assert seen == [GROUP]
        assert bus.refused == 1
        letters = await bus.broker.read(bus.names.dead, 1)
        assert any(b"not a message of this schema" in letter.data for letter in letters)


def test_a_handler_that_fails_again_and_again_makes_poison(server):
    @on_bus(server)
    async def body(join):
        bus, tries, poison = await join("generator-0"), [], []
        await bus.publish_request(request(bus))

        async def handler(delivery, message):
            tries.append(delivery.deliveries)
            raise ZeroDivisionError("a bug")

        async def on_poison(message, why):
            poison.append((message.group_id, why))
            worker.stop()

        worker = rollout(bus, handler, on_poison=on_poison, max_failures=2)
        await worker.run()
        assert tries == [1, 2]
        assert poison == [(GROUP, "ZeroDivisionError: a bug")]
        assert (await bus.broker.stream_state(bus.names.requests)).messages == 0
        kinds = [fact.kind for _, fact in await bus.read_facts(1)]
        assert kinds == ["poisoned"]


def test_retry_puts_back_and_is_no_failure(server):
    @on_bus(server)
    async def body(join):
        bus, tries = await join("generator-0"), []
        await bus.publish_request(request(bus))

        async def handler(delivery, message):
            tries.append(delivery.deliveries)
            if len(tries) == 1:
                raise Retry(0.1, "not now")
            worker.stop()

        worker = rollout(bus, handler)
        await worker.run()
        assert tries == [1, 2] and worker.failures == 0 and worker.done == 1


def beat(bus, pid, held=(), **gauges):
    return Beat(
        run_id=bus.run_id, kind="generator", actor="generator-0", pid=pid, host="here", at=0.0, held=held, gauges=gauges
    )


async def take_one(bus):
    delivery = await bus.broker.fetch(bus.names.requests, subjects.rollout_consumer(), 5.0)
    assert delivery is not None
    return delivery, Held(stream=delivery.stream, seq=delivery.seq, reply=delivery.reply)


@pytest.mark.parametrize("restarted", [True, False])
def test_the_work_of_a_dead_actor_is_handed_on_at_once(server, restarted):
    @on_bus(server)
    async def body(join):
        bus, other, sampler = await join("generator-0"), await join("generator-1"), await join("sampler-0")
        await bus.publish_request(request(bus))
        _, held = await take_one(bus)
        reaper = Reaper(sampler, max_deaths=3, on_poison=None)
        await bus.beat(beat(bus, pid=1, held=(held,)))
        if restarted:
            await bus.beat(beat(bus, pid=2))

        async def reap():
            async for actor, seen in sampler.watch_actors():
                await reaper.see(actor, seen)

        reaping = asyncio.create_task(reap())
        if restarted:  # the watch may only show the newest beat; the reaper must have seen the older one
            await reaper.see("generator-0", beat(bus, pid=1, held=(held,)))
            await reaper.see("generator-0", beat(bus, pid=2))
        delivery = None
        for _ in range(20):
            delivery = delivery or await other.broker.fetch(other.names.requests, subjects.rollout_consumer(), 1.0)
        assert delivery is not None and delivery.deliveries == 2
        deaths = []
        while not deaths:  # the fact follows the nak
            deaths = [fact.data for _, fact in await bus.read_facts(1) if fact.kind == "died"]
        reaping.cancel()
        assert deaths[0]["actor"] == "generator-0" and deaths[0]["handed_on"] == 1


def test_an_actor_that_leaves_is_not_dead(server):
    @on_bus(server)
    async def body(join):
        sampler = await join("sampler-0")
        reaper = Reaper(sampler, max_deaths=3, on_poison=None)
        await reaper.see("generator-0", beat(sampler, pid=1, leaving=1.0))
        await reaper.see("generator-0", None)
        assert await sampler.read_facts(1, timeout_s=0.2) == []


def test_work_that_kills_its_workers_is_given_up(server):
    @on_bus(server)
    async def body(join):
        bus, given_up = await join("generator-0"), []
        await bus.publish_request(request(bus))

        async def on_poison(stream, subject, payload, why):
            assert subject == subjects.request(bus.run_id, GROUP)
            given_up.append((stream, why))

        reaper = Reaper(bus, max_deaths=2, on_poison=on_poison)
        for pid in (1, 2):
            _, held = await take_one(bus)
            await reaper.see("generator-0", beat(bus, pid=pid, held=(held,)))
            await reaper.see("generator-0", None)
        assert given_up == [(bus.names.requests, "2 workers died while they worked on it")]
        assert (await bus.broker.stream_state(bus.names.requests)).messages == 0
        records = [r for r in await bus.broker.read(bus.names.dead, 1) if r.subject.endswith(".dead.letter")]
        dead = [msgspec.msgpack.decode(r.data, type=Dead) for r in records]
        assert dead[0].deliveries == 2 and dead[0].payload


def test_facts_of_an_unknown_kind_are_a_bug(server):
    @on_bus(server)
    async def body(join):
        bus = await join("sampler-0")
        with pytest.raises(ValueError, match="unknown fact kind"):
            await bus.fact("happened")
        await bus.fact("joined", kind="sampler", pid=1, host="here")
        [(_, fact)] = await bus.read_facts(1)
        assert isinstance(fact, Fact) and fact.data == {"kind": "sampler", "pid": 1, "host": "here"}


def test_a_watch_of_standing_keys_asks_the_server_now_and_then_and_no_more(server, monkeypatch):
    """A watch once read its bucket again and again without a pause as soon as one key stood for five seconds."""
    monkeypatch.setattr("bus.buckets._COMPARE_S", 0.2)

    @on_bus(server)
    async def body(join):
        bus = await join("sampler-0")
        await bus.beat(beat(bus, pid=1))
        seen = []

        async def watch():
            async for actor, _ in bus.watch_actors():
                seen.append(actor)

        def asked():
            return int(json.load(urllib.request.urlopen(server.monitor_url + "/varz"))["in_msgs"])

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.5)
        before = await asyncio.to_thread(asked)
        await asyncio.sleep(1.0)
        after = await asyncio.to_thread(asked)
        watching.cancel()
        assert seen == ["sampler-0"]
        assert after - before < 60


def test_a_blob_of_several_messages_comes_back_whole_and_is_gone_when_trimmed(server):
    @on_bus(server)
    async def body(join):
        learner, generator = await join("learner-0"), await join("generator-0")
        first = os.urandom(20 * BLOB_BYTES // 8 + 5)
        places = [await learner.put_blob(name, data) for name, data in [("v1", first), ("v2", b""), ("v3", b"x" * 9)]]
        assert await generator.blob("v1", places[0], 20) == first
        assert await generator.blob("v2", places[1], 20) == b""
        await learner.trim_blobs(places[1])
        with pytest.raises(FileNotFoundError, match=r"v1 .* was trimmed"):
            await generator.blob("v1", places[0], 20)
        assert await generator.blob("v3", places[2], 20) == b"x" * 9


def test_blobs_put_at_the_same_time_do_not_mix(server):
    """A learner that was replaced may still be putting one."""

    @on_bus(server)
    async def body(join):
        old, new, generator = await join("learner-0"), await join("learner-1"), await join("generator-0")
        datas = {"i1-v3": os.urandom(3 * BLOB_BYTES), "i2-v3": os.urandom(2 * BLOB_BYTES + 1)}
        places = await asyncio.gather(old.put_blob("i1-v3", datas["i1-v3"]), new.put_blob("i2-v3", datas["i2-v3"]))
        for (name, data), place in zip(datas.items(), places, strict=True):
            assert await generator.blob(name, place, 20) == data


def test_a_blob_that_never_gets_whole_is_given_up(server):
    @on_bus(server)
    async def body(join):
        bus = await join("learner-0")
        piece = Blob(run_id=bus.run_id, name="v1", number=0, count=2, data=b"a")
        place = await bus.broker.publish(subjects.blob(bus.run_id, "v1"), codec.encode(piece), timeout_s=10)
        with pytest.raises(TimeoutError, match="1 pieces of blob v1"):
            await bus.blob("v1", place, 0.2)
