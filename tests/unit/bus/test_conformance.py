"""Conformance of both brokers (`bus.broker`): crashes of the broker, and what is refused."""

import asyncio

import msgspec
import pytest

from bus.broker import (
    Broker,
    BucketSpec,
    ConnectionLost,
    ConsumerSpec,
    Delivery,
    Missing,
    StreamSpec,
    TooLarge,
    TopologyDrift,
)
from tests.unit.bus.table import TABLE, outage, two, work

# The broker comes and goes -------------------------------------------------------------------------------------------


async def test_what_was_stored_survives_a_crash(world):
    a, b = await two(world)
    for i in range(50):
        await a.publish(f"t.log.{i}", b"")
    held = await publish_and_hold(a, b)
    await outage(world)
    assert len(await b.read("t_LOG", 1)) == 50
    await b.nak_reply(held.reply)
    assert (await work(b, "blue")).subject == held.subject
    await a.ensure(TABLE)


async def publish_and_hold(a: Broker, b: Broker) -> Delivery:
    await a.publish("t.job.blue.held", b"")
    return await work(b, "blue")


async def test_those_who_wait_are_served_after_a_crash(world):
    a, b = await two(world)
    reconnected = asyncio.Event()
    a.on_reconnect(reconnected.set)
    fetching = asyncio.create_task(work(a, "blue"))
    reading = asyncio.create_task(a.read("t_LOG", 1, timeout_s=60))
    await asyncio.sleep(0.05)
    world.crash()
    publishing = asyncio.create_task(b.publish("t.job.blue.k", b"during"))
    await asyncio.sleep(0.05)
    world.restart()
    assert await publishing == 1
    assert (await fetching).data == b"during"
    await b.publish("t.log.k", b"after")
    assert [r.data for r in await reading] == [b"after"]
    await asyncio.wait_for(reconnected.wait(), 10)


async def test_publishes_over_a_crash_are_stored_once(world):
    a, b = await two(world)

    async def publish_all(broker: Broker, who: str) -> list[int]:
        return [await broker.publish(f"t.log.{who}-{i}", b"") for i in range(200)]

    tasks = [asyncio.create_task(publish_all(broker, who)) for broker, who in ((a, "a"), (b, "b"))]
    position = 1
    while position < 50:
        position = (await a.read("t_LOG", position, timeout_s=5))[-1].seq + 1
    await outage(world)
    seqs = [seq for task in tasks for seq in await task]
    assert sorted(seqs) == list(range(1, 401))
    assert (await a.stream_state("t_LOG")).messages == 400


async def test_without_a_broker_calls_end_with_a_clear_error(world):
    a, _ = await two(world)
    world.crash()
    with pytest.raises(TimeoutError, match=r"storing 1 bytes on t\.log\.k"):
        await a.publish("t.log.k", b"1", timeout_s=0.2)
    assert await a.fetch("t_JOBS", "red", 0.2) is None


async def test_a_closed_connection_says_so(world):
    a, b = await two(world)
    waiting = asyncio.create_task(a.read("t_LOG", 1, timeout_s=60))
    await asyncio.sleep(0.05)
    await a.close()
    with pytest.raises(ConnectionLost):
        await a.publish("t.log.k", b"")
    assert (await b.stream_state("t_LOG")).messages == 0
    await asyncio.wait({waiting})
    assert isinstance(waiting.exception(), ConnectionLost)


# Refusals ------------------------------------------------------------------------------------------------------------


async def test_ensure_is_idempotent_and_concurrent(world):
    a, b = await world.connect("a"), await world.connect("b")
    await asyncio.gather(*(broker.ensure(TABLE) for broker in (a, b, a, b)))
    await a.publish("t.log.k", b"")
    await b.ensure(TABLE)
    assert (await b.stream_state("t_LOG")).messages == 1


CHANGED = {
    "stream": msgspec.structs.replace(TABLE, streams=(StreamSpec(name="t_LOG", subjects=("t.log.*",)),)),
    "age": msgspec.structs.replace(
        TABLE, streams=(StreamSpec(name="t_NEWEST", subjects=("t.newest.*",), latest=True, max_age_s=9.0),)
    ),
    "consumer": msgspec.structs.replace(
        TABLE, consumers=(ConsumerSpec(stream="t_JOBS", name="blue", filter="t.job.blue.*", ack_wait_s=61.0),)
    ),
    "filter": msgspec.structs.replace(
        TABLE, consumers=(ConsumerSpec(stream="t_JOBS", name="blue", filter="t.job.green.*", ack_wait_s=60.0),)
    ),
    "bucket": msgspec.structs.replace(TABLE, buckets=(BucketSpec(name="t_beats", ttl_s=3.0),)),
}


@pytest.mark.parametrize("what", sorted(CHANGED))
async def test_other_settings_are_refused_and_change_nothing(world, what):
    a, b = await two(world)
    with pytest.raises(TopologyDrift, match="exists with other settings"):
        await b.ensure(CHANGED[what])
    await a.ensure(TABLE)


async def test_oversize_is_refused_before_it_is_sent(world):
    a, _ = await two(world)
    with pytest.raises(TooLarge, match=r"bytes on t\.log\.k, the (server|broker) takes 8387584"):
        await a.publish("t.log.k", bytes(8 * 1024 * 1024))
    assert await a.publish("t.log.k", bytes(8_000_000)) == 1


async def test_what_was_not_ensured_is_missing(world):
    a, _ = await two(world)
    calls = (
        a.publish("t.nobody", b""),
        a.fetch("t_JOBS", "nobody", 5.0),
        a.fetch("t_NONE", "nobody", 5.0),
        a.read("t_NONE", 1, timeout_s=0),
        a.last("t_NONE", "t.x"),
        a.stream_state("t_NONE"),
        a.consumer_state("t_JOBS", "nobody"),
        a.get("t_none", "k"),
        a.put("t_none", "k", b""),
    )
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [Missing] * len(calls)
