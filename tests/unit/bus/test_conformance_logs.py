"""Conformance of both brokers: logs by position, compare-and-set, newest values, subscriptions."""

import asyncio

import pytest

from bus.broker import SequenceConflict
from tests.unit.bus.table import two


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
