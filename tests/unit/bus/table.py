"""The table and the helpers of the conformance suite: two connections, one delivery, an outage, an entry of a watch."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from bus import topology
from bus.broker import Broker, BucketSpec, ConsumerSpec, Delivery, Entry, StreamSpec, Topology

ACK_WAIT_S = 1.0
TTL_S = 1.0
MAX_AGE_S = 2.0

TABLE = Topology(
    streams=(
        StreamSpec(name="t_JOBS", subjects=("t.job.*.*",), work_queue=True, unique=True),
        StreamSpec(name="t_LOG", subjects=("t.log.*",), unique=True),
        StreamSpec(name="t_NEWEST", subjects=("t.newest.*",), latest=True, max_age_s=MAX_AGE_S),
        StreamSpec(name="t_STEPS", subjects=("t.step",)),
        StreamSpec(name="t_SMALL", subjects=("t.small.*",), max_messages=2),
        StreamSpec(name="t_DEAD", subjects=("t.dead", *topology.advisory_subjects("t_JOBS"))),
    ),
    consumers=(
        ConsumerSpec(stream="t_JOBS", name="red", filter="t.job.red.*", ack_wait_s=ACK_WAIT_S, max_deliver=3),
        ConsumerSpec(stream="t_JOBS", name="blue", filter="t.job.blue.*", ack_wait_s=60.0, max_ack_pending=4),
    ),
    buckets=(BucketSpec(name="t_plain"), BucketSpec(name="t_beats", ttl_s=TTL_S)),
)


async def two(world: Any) -> tuple[Broker, Broker]:
    """Two connections, and the table."""
    a, b = await world.connect("a"), await world.connect("b")
    await a.ensure(TABLE)
    return a, b


async def work(broker: Broker, consumer: str = "red", timeout_s: float = 5.0) -> Delivery:
    delivery = await broker.fetch("t_JOBS", consumer, timeout_s)
    assert delivery is not None
    return delivery


async def outage(world: Any) -> None:
    world.crash()
    await asyncio.sleep(0)  # time to notice
    world.restart()


async def next_entry(watch: AsyncIterator[Entry]) -> Entry:
    return await asyncio.wait_for(anext(watch), 20)
