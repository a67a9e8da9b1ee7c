"""Key-value buckets: a stream each, whose newest message on a key's subject is its value.

A watch reads that stream by position, so it can't go blind: it simply goes on after a reconnect. A key that expires
leaves a mark in the stream, but only for `ttl_s`; so a watch also compares with the whole bucket, after every reconnect
and every few seconds, and reports what vanished without a mark. (What it makes of that: `bus.watching`.)
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from bus.broker import Entry, SequenceConflict
from bus.connection import Connection
from bus.jetstream import bucket_stream, call
from bus.reader import Reader, Stored
from bus.subjects import bucket_key
from bus.watching import Watching

log = structlog.get_logger()
_BATCH = 256
_COMPARE_S = 5.0
_OPERATION = "KV-Operation"
"""Header of a deletion."""
_MARKER = "Nats-Marker-Reason"
"""Header of the server's own mark for a key that expired."""

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
        await self._publish(_subject(bucket, key), b"", headers={_OPERATION: "DEL"})

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
        info = await call(self._connection, f"STREAM.INFO.{bucket_stream(bucket)}", {}, f"watching {bucket}")
        watching = Watching(info["config"].get("max_age", 0) / 1e9)
        generation = self._connection.generation
        standing: set[str] | None = set()
        """While the whole bucket is being read: the keys found so far; otherwise None."""
        position, compared_at = 1, clock()
        while True:
            asked_at = clock()
            wait_s = min(_COMPARE_S, max(0.0, watching.next_due() - asked_at)) if standing is None else 0.0
            try:
                batch = await self._reader.read(bucket_stream(bucket), position, _BATCH, wait_s)
            except TimeoutError as error:  # an outage, or a server that hangs: whoever follows asks again
                log.info("no answer, asking again", why=str(error))
                watching.doubt(clock())
                continue
            reconnected = generation != self._connection.generation
            if reconnected or clock() - asked_at > wait_s + watching.ttl_s / 2 > 0:
                watching.doubt(clock())
            for stored in batch:
                position = stored.seq + 1
                if standing is not None and not _is_mark(stored):
                    standing.add(_key(bucket, stored))
                for entry in _seen(watching, bucket, stored, clock()):
                    yield entry
            if not batch and standing is not None:
                for entry in watching.compared(standing, clock()):
                    yield entry
                standing, compared_at = None, clock()
            for entry in watching.settle(clock()):
                yield entry
            if reconnected or (standing is None and clock() > compared_at + _COMPARE_S):
                generation = self._connection.generation
                standing, position = set(), 1


def _seen(watching: Watching, bucket: str, stored: Stored, now: float) -> list[Entry]:
    key = _key(bucket, stored)
    if _MARKER in stored.headers:
        return watching.expired(key, stored.seq, now)
    if _OPERATION in stored.headers:
        return watching.deleted(key, stored.seq)
    return watching.value(_entry(bucket, stored))


def _subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{bucket_key(key)}"


def _key(bucket: str, stored: Stored) -> str:
    return stored.subject[len(f"$KV.{bucket}.") :]


def _is_mark(stored: Stored) -> bool:
    """Does this message say that the key is gone?"""
    return _OPERATION in stored.headers or _MARKER in stored.headers


def _entry(bucket: str, stored: Stored) -> Entry:
    return Entry(key=_key(bucket, stored), value=stored.data, revision=stored.seq)
