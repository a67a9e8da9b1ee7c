"""Conformance of both brokers: keys that stand, and work queues."""

import asyncio

import pytest

from bus import topology
from bus.broker import ConnectionLost, Delivery, StreamFull, SubjectTaken
from tests.unit.bus.table import ACK_WAIT_S, outage, two, work

# Uniqueness ----------------------------------------------------------------------------------------------------------


async def test_a_key_that_stands_is_refused_until_it_is_acked(world):
    a, b = await two(world)
    await a.publish("t.job.red.k", b"1")
    with pytest.raises(SubjectTaken, match=r"t\.job\.red\.k"):
        await b.publish("t.job.red.k", b"2")
    delivery = await work(b)
    with pytest.raises(SubjectTaken):
        await a.publish("t.job.red.k", b"3")
    await delivery.ack()
    assert await a.publish("t.job.red.k", b"4") == 2


async def test_a_key_stands_over_a_broker_crash(world):
    a, b = await two(world)
    await a.publish("t.job.red.k", b"1")
    await a.publish("t.log.k", b"1")
    await outage(world)
    for subject in ("t.job.red.k", "t.log.k"):
        with pytest.raises(SubjectTaken):
            await b.publish(subject, b"2")


async def test_a_trimmed_key_is_accepted_again(world):
    a, _ = await two(world)
    seq = await a.publish("t.log.k", b"1")
    await a.trim("t_LOG", seq + 1)
    assert await a.publish("t.log.k", b"2") == seq + 1


async def test_a_full_stream_refuses_and_says_so(world):
    a, _ = await two(world)
    await a.publish("t.small.a", b"1")
    await a.publish("t.small.b", b"1")
    with pytest.raises(StreamFull):
        await a.publish("t.small.c", b"1")
    await a.trim("t_SMALL", 2)
    assert await a.publish("t.small.c", b"1") == 3


# Work queues ---------------------------------------------------------------------------------------------------------


async def test_a_delivery_carries_its_message(world):
    a, b = await two(world)
    seq = await a.publish("t.job.red.k", b"payload")
    delivery = await work(b)
    assert (delivery.stream, delivery.subject, delivery.data) == ("t_JOBS", "t.job.red.k", b"payload")
    assert (delivery.seq, delivery.deliveries) == (seq, 1)


async def test_work_reaches_only_the_consumer_of_its_kind(world):
    a, b = await two(world)
    await a.publish("t.job.blue.k", b"1")
    assert await b.fetch("t_JOBS", "red", 0.1) is None
    assert (await work(b, "blue")).subject == "t.job.blue.k"


async def test_each_message_goes_to_one_worker_in_order(world):
    a, b = await two(world)
    for i in range(4):
        await a.publish(f"t.job.red.{i}", b"")
    got = [(await work(broker)).subject for broker in (a, b, a, b)]
    assert got == [f"t.job.red.{i}" for i in range(4)]


async def test_no_more_are_in_flight_than_max_ack_pending(world):
    a, b = await two(world)
    for i in range(5):
        await a.publish(f"t.job.blue.{i}", b"")
    held = [await work(b, "blue") for _ in range(4)]
    assert await b.fetch("t_JOBS", "blue", 0.1) is None
    await held[0].ack()
    assert (await work(b, "blue")).subject == "t.job.blue.4"


async def beat(delivery: Delivery) -> None:
    while True:
        await delivery.in_progress()
        await asyncio.sleep(ACK_WAIT_S / 5)


async def test_silence_redelivers_after_ack_wait(world):
    a, b = await two(world)
    await a.publish("t.job.red.k", b"1")
    clock = asyncio.get_running_loop().time
    asked_at = clock()
    first = await work(a)
    second = await work(b)
    assert clock() >= asked_at + ACK_WAIT_S
    assert (second.seq, second.deliveries, second.data) == (first.seq, 2, b"1")


async def test_in_progress_keeps_the_message(world):
    a, b = await two(world)
    await a.publish("t.job.red.k", b"1")
    delivery = await work(a)
    beats = asyncio.create_task(beat(delivery))
    assert await b.fetch("t_JOBS", "red", 1.5 * ACK_WAIT_S) is None
    beats.cancel()
    assert (await work(b)).deliveries == 2


async def test_ack_ends_it(world):
    a, b = await two(world)
    await a.publish("t.job.red.k", b"1")
    await (await work(a)).ack()
    assert await b.fetch("t_JOBS", "red", 1.2 * ACK_WAIT_S) is None
    assert (await a.stream_state("t_JOBS")).messages == 0


async def test_ack_can_be_repeated(world):
    a, _ = await two(world)
    await a.publish("t.job.red.k", b"1")
    delivery = await work(a)
    await delivery.ack()
    await delivery.ack()
    assert (await a.stream_state("t_JOBS")).messages == 0


async def test_an_ack_through_an_earlier_delivery_counts(world):
    a, b = await two(world)
    await a.publish("t.job.red.k", b"1")
    first = await work(a)
    await first.nak()
    second = await work(b)
    await first.ack()
    assert (await a.stream_state("t_JOBS")).messages == 0
    await second.ack()


async def test_nak_redelivers_at_once(world):
    a, b = await two(world)
    await a.publish("t.job.blue.k", b"1")
    await (await work(a, "blue")).nak()
    assert (await work(b, "blue")).deliveries == 2  # ack_wait is a minute: a fetch would not wait so long


async def test_nak_with_a_delay_holds_it_back(world):
    a, b = await two(world)
    await a.publish("t.job.blue.k", b"1")
    delivery = await work(a, "blue")
    clock = asyncio.get_running_loop().time
    asked_at = clock()
    await delivery.nak(0.4)
    assert await b.fetch("t_JOBS", "blue", 0.1) is None
    assert (await work(b, "blue")).deliveries == 2
    assert clock() >= asked_at + 0.4


async def test_another_process_can_nak(world):
    a, b = await two(world)
    await a.publish("t.job.blue.k", b"1")
    held = await work(a, "blue")
    await b.nak_reply(held.reply)
    assert (await work(b, "blue")).deliveries == 2


async def test_a_nak_through_an_earlier_delivery_redelivers_again(world):
    """So the reaper must look whether somebody else holds the message by now."""
    a, b = await two(world)
    await a.publish("t.job.blue.k", b"1")
    first = await work(a, "blue")
    await first.nak()
    await work(b, "blue")
    await b.nak_reply(first.reply)
    assert (await work(a, "blue")).deliveries == 3


async def test_term_takes_it_away_and_is_announced(world):
    a, b = await two(world)
    seq = await a.publish("t.job.red.k", b"1")
    await (await work(a)).term()
    [record] = await b.read("t_DEAD", 1, timeout_s=5)
    advisory = topology.advisory(record.data)
    assert advisory is not None
    assert (advisory.type, advisory.stream, advisory.stream_seq) == (topology.TERMINATED, "t_JOBS", seq)
    assert (await a.stream_state("t_JOBS")).messages == 0


async def test_used_up_deliveries_are_announced_and_the_message_still_stands(world):
    a, b = await two(world)
    seq = await a.publish("t.job.red.k", b"payload")
    for expected in (1, 2, 3):
        delivery = await work(a)
        assert delivery.deliveries == expected
        await delivery.nak()
    assert await a.fetch("t_JOBS", "red", 0.2) is None
    [record] = await b.read("t_DEAD", 1, timeout_s=5)
    advisory = topology.advisory(record.data)
    assert advisory is not None
    assert (advisory.type, advisory.consumer, advisory.deliveries) == (topology.MAX_DELIVERIES, "red", 3)
    assert advisory.stream_seq == seq
    assert await b.remove("t_JOBS", seq) == b"payload"
    assert (await a.stream_state("t_JOBS")).messages == 0


async def test_remove_takes_one_message_out_even_in_flight(world):
    a, b = await two(world)
    seq = await a.publish("t.job.red.k", b"1")
    delivery = await work(a)
    assert await b.remove("t_JOBS", seq) == b"1"
    assert await b.remove("t_JOBS", seq) is None
    await delivery.ack()
    assert await a.fetch("t_JOBS", "red", 1.2 * ACK_WAIT_S) is None


async def test_a_fetch_that_finds_nothing_ends_in_time(world):
    a, _ = await two(world)
    clock = asyncio.get_running_loop().time
    asked_at = clock()
    assert await a.fetch("t_JOBS", "red", 0.3) is None
    assert clock() >= asked_at + 0.25


async def test_a_waiting_fetch_gets_what_is_published(world):
    a, b = await two(world)
    waiting = asyncio.create_task(work(a, "blue"))
    await asyncio.sleep(0.05)
    await b.publish("t.job.blue.k", b"1")
    assert (await waiting).subject == "t.job.blue.k"


async def test_a_cancelled_fetch_loses_nothing(world):
    a, b = await two(world)
    for i in range(20):
        waiting = asyncio.create_task(a.fetch("t_JOBS", "blue", 5.0))
        for _ in range(i):
            await asyncio.sleep(0)
        await b.publish(f"t.job.blue.{i}", b"")
        waiting.cancel()
        [got] = await asyncio.gather(waiting, return_exceptions=True)
        delivery = await work(b, "blue") if isinstance(got, BaseException) else got
        assert delivery.subject == f"t.job.blue.{i}"
        await delivery.ack()


async def test_closing_puts_a_pending_fetch_back(world):
    a, b = await two(world)
    waiting = asyncio.create_task(a.fetch("t_JOBS", "blue", 5.0))
    await asyncio.sleep(0.05)
    await b.publish("t.job.blue.k", b"1")
    await a.close()
    [got] = await asyncio.gather(waiting, return_exceptions=True)
    if not isinstance(got, ConnectionLost):  # it was faster
        await b.nak_reply(got.reply)
    assert (await work(b, "blue")).subject == "t.job.blue.k"


async def test_consumer_state_counts(world):
    a, b = await two(world)
    for i in range(3):
        await a.publish(f"t.job.blue.{i}", b"")
    await work(a, "blue")
    await (await work(a, "blue")).nak()
    await work(b, "blue")
    state = await b.consumer_state("t_JOBS", "blue")
    assert (state.waiting, state.in_flight, state.redelivered) == (1, 2, 1)
