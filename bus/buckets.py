"""Key-value buckets: a stream each, whose newest message on a key's subject is its value.

A watch reads that stream by position, so it can't go blind: it simply goes on after a reconnect. A key that expires
leaves a mark in the stream, but only for `ttl_s`; so a watch also compares with the whole bucket, after every reconnect
and every few seconds, and reports what vanished without a mark.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from bus.broker import Entry, SequenceConflict
from bus.connection import Connection
from bus.jetstream import bucket_stream
from bus.reader import Reader, Stored
from bus.subjects import bucket_key

_BATCH = 256
_COMPARE_S = 5.0

Publish = Callable[..., Awaitable[int]]


class Buckets:
    """The bucket calls of one connection. `publish` is the broker's own: it repeats itself and compares-and-sets."""

    def __init__(self, connection: Connection, reader: Reader, publish: Publish) -> None:
        self._connection = connection
        self._reader = reader
        self._publish = publish

    async def get(self, bucket: str, key: str) -> Entry | None:
        stored = await self._reader.last(bucket_stream(bucket), _subject(bucket, key))
        return None if stored is None or _is_mark(stored) else _entry(bucket, stored)

    async def put(self, bucket: str, key: str, value: bytes) -> int:
        return await self._publish(_subject(bucket, key), value)

    async def update(self, bucket: str, key: str, value: bytes, revision: int) -> int:
        subject = _subject(bucket, key)
        try:
            return await self._publish(subject, value, expect_last_seq=revision)
        except SequenceConflict:
            if revision:
                raise
        # "Must not exist" is also true of a key whose newest message says that it was deleted or expired.
        stored = await self._reader.last(bucket_stream(bucket), subject)
        if stored is not None and not _is_mark(stored):
            raise SequenceConflict(f"key {key!r} of {bucket} exists, at revision {stored.seq}")
        return await self._publish(subject, value, expect_last_seq=stored.seq if stored else 0)

    async def delete(self, bucket: str, key: str) -> None:
        await self._publish(_subject(bucket, key), b"", headers={"KV-Operation": "DEL"})

    async def keys(self, bucket: str) -> list[str]:
        found: dict[str, bool] = {}
        position = 1
        while True:
            batch = await self._reader.read(bucket_stream(bucket), position, _BATCH, 0)
            if not batch:
                return sorted(key for key, stands in found.items() if stands)
            for stored in batch:
                found[_key(bucket, stored)] = not _is_mark(stored)
            position = batch[-1].seq + 1

    async def watch(self, bucket: str) -> AsyncIterator[Entry]:
        clock = asyncio.get_running_loop().time
        known: dict[str, int] = {}
        """Key -> revision that was reported."""
        standing: set[str] | None = set()
        """While the whole bucket is being read: the keys found so far; otherwise None."""
        position, generation, compared_at = 1, self._connection.generation, clock()
        while True:
            wait_s = _COMPARE_S if standing is None else 0
            batch = await self._reader.read(bucket_stream(bucket), position, _BATCH, wait_s)
            for stored in batch:
                key = _key(bucket, stored)
                position = stored.seq + 1
                if _is_mark(stored):
                    if known.pop(key, None) is not None:
                        yield Entry(key=key, value=None, revision=stored.seq)
                    continue
                if standing is not None:
                    standing.add(key)
                if known.get(key, 0) < stored.seq:
                    known[key] = stored.seq
                    yield _entry(bucket, stored)
            if not batch and standing is not None:
                for key in sorted(known.keys() - standing):
                    yield Entry(key=key, value=None, revision=known.pop(key))
                standing, compared_at = None, clock()
            if generation != self._connection.generation or clock() > compared_at + _COMPARE_S:
                generation = self._connection.generation
                standing, position = set(), 1


def _subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{bucket_key(key)}"


def _key(bucket: str, stored: Stored) -> str:
    return stored.subject[len(f"$KV.{bucket}.") :]


def _is_mark(stored: Stored) -> bool:
    """Does this message say that the key is gone?"""
    return "KV-Operation" in stored.headers or "Nats-Marker-Reason" in stored.headers


def _entry(bucket: str, stored: Stored) -> Entry:
    return Entry(key=_key(bucket, stored), value=stored.data, revision=stored.seq)
