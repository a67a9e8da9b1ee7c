"""Conformance of both brokers: key-value buckets and their watches."""

import asyncio

import pytest

from bus.broker import Broker, Entry, SequenceConflict
from tests.unit.bus.table import TTL_S, next_entry, two


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
