"""What `bus.broker` promises, held against a real nats-server and against its in-memory twin."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from bus import topology
from bus.broker import (
    Broker,
    BucketSpec,
    ConnectionLost,
    ConsumerSpec,
    Delivery,
    Entry,
    Missing,
    SequenceConflict,
    StreamFull,
    StreamSpec,
    SubjectTaken,
    TooLarge,
    Topology,
    TopologyDrift,
)

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


# Uniqueness --------------------------------------------------------------------------------------------------------


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


# Work queues -------------------------------------------------------------------------------------------------------


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


# Logs --------------------------------------------------------------------------------------------------------------


async def test_compare_and_set_fences_the_slower_writer(world):
    a, b = await two(world)
    first = await a.publish("t.step", b"a1", expect_last_seq=0)
    with pytest.raises(SequenceConflict):
        await b.publish("t.step", b"b1", expect_last_seq=0)
    second = await b.publish("t.step", b"b2", expect_last_seq=first)
    with pytest.raises(SequenceConflict):
        await a.publish("t.step", b"a2", expect_last_seq=first)
    assert [r.data for r in await a.read("t_STEPS", 1)] == [b"a1", b"b2"]
    assert second == first + 1


async def test_reads_go_by_position_across_gaps_and_trims(world):
    a, b = await two(world)
    for i in range(1, 9):
        assert await a.publish(f"t.log.{i}", b"%d" % i) == i
    await a.remove("t_LOG", 4)
    await a.trim("t_LOG", 3)
    assert [r.seq for r in await b.read("t_LOG", 1)] == [3, 5, 6, 7, 8]
    assert [r.seq for r in await b.read("t_LOG", 4, limit=2)] == [5, 6]
    [last] = await b.read("t_LOG", 8)
    assert (last.seq, last.subject, last.data) == (8, "t.log.8", b"8")
    assert await b.read("t_LOG", 9, timeout_s=0.05) == []
    state = await b.stream_state("t_LOG")
    assert (state.messages, state.first_seq, state.last_seq) == (5, 3, 8)


async def test_records_are_stamped_with_wall_time_in_order(world):
    a, _ = await two(world)
    for i in range(3):
        await a.publish(f"t.log.{i}", b"")
    stamps = [r.at for r in await a.read("t_LOG", 1)]
    assert stamps == sorted(stamps) and stamps[0] > 1.6e9


async def test_a_trim_beyond_the_end_does_not_move_positions(world):
    a, _ = await two(world)
    await a.publish("t.log.1", b"")
    await a.trim("t_LOG", 1000)
    state = await a.stream_state("t_LOG")
    assert (state.messages, state.first_seq, state.last_seq) == (0, 2, 1)
    assert await a.publish("t.log.2", b"") == 2


async def test_the_state_of_an_empty_stream(world):
    a, _ = await two(world)
    state = await a.stream_state("t_LOG")
    assert (state.messages, state.bytes, state.first_seq, state.last_seq) == (0, 0, 1, 0)
    await a.trim("t_LOG", 5)
    assert await a.read("t_LOG", 1, timeout_s=0) == []
    assert await a.publish("t.log.1", b"") == 1


async def test_a_waiting_read_gets_what_is_published(world):
    a, b = await two(world)
    await a.publish("t.log.1", b"")
    waiting = asyncio.create_task(a.read("t_LOG", 2, timeout_s=30))
    await asyncio.sleep(0.05)
    await b.publish("t.log.2", b"x")
    assert [r.seq for r in await waiting] == [2]


async def test_long_logs_are_read_in_batches(world):
    a, b = await two(world)
    await asyncio.gather(*(a.publish(f"t.log.{i}", b"x" * 2000) for i in range(700)))
    position, got = 1, []
    while batch := await b.read("t_LOG", position, timeout_s=0):
        assert len(batch) <= 256
        got += [r.subject for r in batch]
        position = batch[-1].seq + 1
    assert sorted(got) == sorted(f"t.log.{i}" for i in range(700))


async def test_a_read_stops_at_32_megabytes_and_takes_large_messages(world):
    a, b = await two(world)
    big = bytes(7_900_000)
    for i in range(6):
        await a.publish(f"t.log.{i}", big)
    first = await b.read("t_LOG", 1)
    assert 1 <= len(first) <= 5
    rest = await b.read("t_LOG", first[-1].seq + 1)
    assert [r.seq for r in first + rest] == [1, 2, 3, 4, 5, 6]
    assert all(r.data == big for r in first + rest)


async def test_the_newest_of_a_key_replaces_it_and_ages_out(world):
    a, b = await two(world)
    await a.publish("t.newest.k", b"1")
    await a.publish("t.newest.k", b"2")
    record = await b.last("t_NEWEST", "t.newest.k")
    assert record is not None and (record.data, record.seq) == (b"2", 2)
    assert await b.last("t_NEWEST", "t.newest.other") is None
    assert (await b.stream_state("t_NEWEST")).messages == 1
    while await b.last("t_NEWEST", "t.newest.k") is not None:
        await b.read("t_NEWEST", 3, timeout_s=0.1)
    assert (await b.stream_state("t_NEWEST")).messages == 0


async def test_a_subscription_and_last_leave_no_gap(world):
    a, b = await two(world)
    for i in range(30):
        subject = f"t.newest.{i}"
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        publishing = asyncio.create_task(a.publish(subject, b"v"))
        for _ in range(i % 10):
            await asyncio.sleep(0)
        subscription = b.subscribe(subject, lambda _, data, got=got: got.done() or got.set_result(data))
        if await b.last("t_NEWEST", subject) is None:
            assert await asyncio.wait_for(got, 10) == b"v"
        await publishing
        await subscription.stop()


async def test_a_stopped_subscription_is_silent_and_others_go_on(world):
    a, b = await two(world)
    seen: list[tuple[str, bytes]] = []
    stopped = b.subscribe("t.newest.*", lambda subject, data: seen.append((subject, data)))
    done = asyncio.Event()
    going = b.subscribe("t.newest.end", lambda subject, data: done.set())
    await b.stream_state("t_NEWEST")
    await stopped.stop()
    await a.publish("t.newest.x", b"")
    await a.publish("t.newest.end", b"")
    await asyncio.wait_for(done.wait(), 10)
    assert seen == []
    await going.stop()


async def test_subscribers_see_what_is_stored_and_nothing_else(world):
    a, b = await two(world)
    seen: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    subscriptions = [b.subscribe(s, lambda *what: seen.put_nowait(what)) for s in ("t.step", "t.job.*.*")]
    await b.stream_state("t_STEPS")
    first = await a.publish("t.step", b"first", expect_last_seq=0)
    with pytest.raises(SequenceConflict):
        await a.publish("t.step", b"zombie", expect_last_seq=0)
    await a.publish("t.job.red.k", b"work")
    await a.publish("t.step", b"second", expect_last_seq=first)
    got = [await asyncio.wait_for(seen.get(), 10) for _ in range(2)]
    assert got == [("t.step", b"first"), ("t.step", b"second")]
    for subscription in subscriptions:
        await subscription.stop()


@pytest.mark.parametrize("subject", ["", "t.new*", "t.>.x", "t..x", "t. x"])
async def test_a_subject_that_can_not_be_subscribed_to_is_refused_at_once(world, subject):
    a, _ = await two(world)
    with pytest.raises(ValueError, match="can't subscribe"):
        a.subscribe(subject, print)


# Buckets -----------------------------------------------------------------------------------------------------------


async def test_a_bucket_keeps_the_newest_value(world):
    a, b = await two(world)
    assert await b.get("t_plain", "k") is None
    first = await a.put("t_plain", "k", b"1")
    second = await a.put("t_plain", "k", b"2")
    entry = await b.get("t_plain", "k")
    assert second > first and entry == Entry(key="k", value=b"2", revision=second)
    await a.put("t_plain", "other.one", b"")
    assert await b.keys("t_plain") == ["k", "other.one"]
    await a.delete("t_plain", "k")
    assert await b.get("t_plain", "k") is None
    assert await b.keys("t_plain") == ["other.one"]


async def test_a_bucket_compares_and_sets(world):
    a, b = await two(world)
    first = await a.update("t_plain", "k", b"1", 0)
    with pytest.raises(SequenceConflict):
        await b.update("t_plain", "k", b"x", 0)
    second = await b.update("t_plain", "k", b"2", first)
    with pytest.raises(SequenceConflict):
        await a.update("t_plain", "k", b"x", first)
    await a.delete("t_plain", "k")
    with pytest.raises(SequenceConflict):
        await b.update("t_plain", "k", b"x", second)
    third = await b.update("t_plain", "k", b"3", 0)
    assert third > second
    assert (await a.get("t_plain", "k")) == Entry(key="k", value=b"3", revision=third)


@pytest.mark.parametrize("key", ["", ".", "a.", "a b", "a.*", ">", "a..b"])
async def test_keys_that_would_be_patterns_are_refused(world, key):
    a, _ = await two(world)
    with pytest.raises(ValueError, match="key"):
        await a.put("t_plain", key, b"")


async def test_a_watch_shows_what_stands_and_every_change(world):
    a, b = await two(world)
    await a.put("t_plain", "gone", b"0")
    await a.delete("t_plain", "gone")
    await a.put("t_plain", "k", b"1")
    watch = b.watch("t_plain")
    assert (await next_entry(watch)).value == b"1"
    await a.put("t_plain", "k", b"2")
    assert (await next_entry(watch)).value == b"2"
    await a.delete("t_plain", "k")
    entry = await next_entry(watch)
    assert (entry.key, entry.value) == ("k", None)
    await a.put("t_plain", "new", b"3")
    assert (await next_entry(watch)).key == "new"
    await watch.aclose()


async def test_a_key_that_is_not_rewritten_expires_and_watchers_are_told(world):
    a, b = await two(world)
    watch = b.watch("t_beats")
    await a.put("t_beats", "kept", b"")
    await a.put("t_beats", "dying", b"")
    assert {(await next_entry(watch)).key, (await next_entry(watch)).key} == {"kept", "dying"}
    beats = asyncio.create_task(rewrite(a, "kept"))
    while (entry := await next_entry(watch)).value is not None:
        assert entry.key == "kept"
    assert entry.key == "dying"
    assert await b.get("t_beats", "dying") is None
    assert await b.keys("t_beats") == ["kept"]
    assert await b.update("t_beats", "dying", b"again", 0) > entry.revision
    beats.cancel()
    await watch.aclose()


async def rewrite(broker: Broker, key: str) -> None:
    while True:
        await asyncio.sleep(TTL_S / 5)
        await broker.put("t_beats", key, b"")


async def test_a_watch_goes_on_after_a_crash_and_misses_no_death(world):
    a, b = await two(world)
    await a.put("t_beats", "dying", b"")
    await a.put("t_plain", "k", b"1")
    beats, plain = b.watch("t_beats"), b.watch("t_plain")
    assert (await next_entry(beats)).value == b""
    assert (await next_entry(plain)).value == b"1"
    death, change = asyncio.ensure_future(next_entry(beats)), asyncio.ensure_future(next_entry(plain))
    await asyncio.sleep(0.01)
    world.crash()
    await asyncio.sleep(2 * TTL_S)
    world.restart()
    await a.put("t_plain", "k", b"2")
    assert (await change).value == b"2"
    entry = await death
    assert (entry.key, entry.value) == ("dying", None)
    await beats.aclose()
    await plain.aclose()


async def test_an_outage_is_not_the_death_of_those_who_go_on_beating(world):
    a, b = await two(world)
    watch = b.watch("t_beats")
    for key in ("kept", "dying"):
        await a.put("t_beats", key, b"")
        assert (await next_entry(watch)).key == key
    ends: list[str] = []
    ended = asyncio.Event()

    async def listen() -> None:
        async for entry in watch:
            if entry.value is None:
                ends.append(entry.key)
                ended.set()

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0.01)
    world.crash()
    await asyncio.sleep(2 * TTL_S)
    world.restart()
    beats = asyncio.create_task(rewrite(a, "kept"))
    await asyncio.wait_for(ended.wait(), 30)
    assert await b.get("t_beats", "kept") is not None
    assert ends == ["dying"]
    beats.cancel()
    listening.cancel()


# The broker comes and goes -----------------------------------------------------------------------------------------


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


# Refusals ----------------------------------------------------------------------------------------------------------


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
    with pytest.raises(TooLarge, match="path and hash"):
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
