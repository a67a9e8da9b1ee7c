"""`NatsBroker`: the broker protocol of `bus.broker` on a nats-server with JetStream.

    connection   one connection, answers by token, reconnecting      jetstream   the table in the server's words
    delivery     pulling and answering for work                      reader      logs by position
    buckets      key-value                                           window      how much may be unconfirmed

Every publish carries an id of its own, so that one that is repeated because its answer was lost is stored once and
answered with its sequence (for a minute; after that by SubjectTaken or SequenceConflict, as the protocol says).
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import structlog

from bus import payload
from bus.address import shown
from bus.broker import (
    BusError,
    ConsumerState,
    Entry,
    Missing,
    Record,
    SequenceConflict,
    StreamFull,
    StreamState,
    SubjectTaken,
    TooLarge,
    Topology,
    Unreachable,
)
from bus.buckets import Buckets
from bus.connection import Connection, NatsSubscription
from bus.delivery import NatsDelivery, Puller, answer
from bus.jetstream import ApiError, call, ensure
from bus.reader import Reader, Stored
from bus.window import Window

log = structlog.get_logger(__name__)

_WINDOW_MESSAGES = 512
_WINDOW_BYTES = 32 * 1024 * 1024


class _Answer(msgspec.Struct):
    """The server's answer to a publish."""

    seq: int = 0
    error: dict[str, Any] | None = None


_answers = msgspec.json.Decoder(_Answer)


class NatsBroker:
    """A connection; `bus.broker.Broker`.

    broker = await NatsBroker.connect("nats://127.0.0.1:4222", token, name="sampler")
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reader = Reader(connection)
        self._buckets = Buckets(connection, self._reader, self._publish)
        self._window = Window(_WINDOW_MESSAGES, _WINDOW_BYTES)
        self._pullers: dict[tuple[str, str], Puller] = {}
        self._id = secrets.token_hex(6)
        self._published = itertools.count()

    @classmethod
    async def connect(cls, url: str, token: str = "", *, name: str, deadline_s: float = 10.0) -> "NatsBroker":
        """Connect, trying until `deadline_s`; raises Unreachable, also for a server whose messages are too small for a
        run. `name` shows in the server's pages."""
        connection = await Connection.open(url, token, name=name, deadline_s=deadline_s)
        limit = connection.max_message + payload.HEADERS
        if why := payload.refused(limit):
            await connection.close()
            raise Unreachable(f"the nats-server at {shown(url)} {why}; {name} did not connect")
        if why := payload.narrow(limit):
            log.warning("bus.narrow", url=shown(url), why=why, mend=payload.MEND)
        return cls(connection)

    @property
    def max_message(self) -> int:
        return self._connection.max_message

    async def store(self) -> str:
        """What is wrong with the server's JetStream; "" when nothing."""
        try:
            await call(self._connection, "INFO", {}, "looking at JetStream")
        except (Missing, ApiError) as error:
            return f"has no JetStream ({error})"
        return ""

    async def ensure(self, topology: Topology) -> None:
        await ensure(self._connection, topology)

    async def publish(
        self, subject: str, data: bytes, *, expect_last_seq: int | None = None, timeout_s: float = 10.0
    ) -> int:
        return await self._publish(subject, data, expect_last_seq=expect_last_seq, timeout_s=timeout_s)

    async def _publish(
        self,
        subject: str,
        data: bytes,
        *,
        expect_last_seq: int | None = None,
        timeout_s: float = 10.0,
        headers: dict[str, str] | None = None,
    ) -> int:
        if len(data) > self._connection.max_message:
            raise TooLarge(
                f"{len(data)} bytes on {subject}, the server takes {self._connection.max_message}: {payload.MEND}"
            )
        headers = {"Nats-Msg-Id": f"{self._id}-{next(self._published)}", **(headers or {})}
        if expect_last_seq is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expect_last_seq)
        deadline = asyncio.get_running_loop().time() + timeout_s
        what = f"storing {len(data)} bytes on {subject}"
        try:
            async with asyncio.timeout_at(deadline):
                await self._window.enter(len(data))
        except TimeoutError:
            raise TimeoutError(f"too much waits for the server already: {what}") from None
        try:
            reply = await self._connection.request(subject, data, deadline=deadline, what=what, headers=headers)
        finally:
            self._window.leave(len(data))
        stored = _answers.decode(reply.data)
        if stored.error:
            raise _refusal(what, stored.error)
        return stored.seq

    async def fetch(self, stream: str, consumer: str, timeout_s: float = 5.0) -> NatsDelivery | None:
        puller = self._pullers.get((stream, consumer))
        if puller is None:
            puller = self._pullers[stream, consumer] = Puller(self._connection, stream, consumer)
        return await puller.fetch(timeout_s)

    async def read(self, stream: str, from_seq: int, limit: int = 256, timeout_s: float = 1.0) -> list[Record]:
        return [_record(stored) for stored in await self._reader.read(stream, from_seq, limit, timeout_s)]

    async def last(self, stream: str, subject: str) -> Record | None:
        stored = await self._reader.last(stream, subject)
        return _record(stored) if stored else None

    async def trim(self, stream: str, below_seq: int) -> None:
        # A purge beyond the end would move the end, and with it every position that readers hold.
        below_seq = min(below_seq, (await self.stream_state(stream)).last_seq + 1)
        if below_seq > 1:
            await call(self._connection, f"STREAM.PURGE.{stream}", {"seq": below_seq}, f"trimming {stream}")

    async def remove(self, stream: str, seq: int) -> bytes | None:
        what = f"taking #{seq} out of {stream}"
        found = await self._reader.read(stream, seq, 1, 0)
        if not found or found[0].seq != seq:
            return None
        try:
            await call(self._connection, f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True}, what)
        except ApiError as error:
            if error.code in _GONE:
                return None
            raise
        return found[0].data

    def subscribe(self, subject: str, callback: Callable[[str, bytes], None]) -> NatsSubscription:
        return self._reader.subscribe(subject, callback)

    async def nak_reply(self, reply: str) -> None:
        await answer(self._connection, reply, b"-NAK", f"nak for another process: {reply}")

    async def stream_state(self, stream: str) -> StreamState:
        info = await call(self._connection, f"STREAM.INFO.{stream}", {}, f"state of {stream}")
        state = info["state"]
        first = state["first_seq"] if state["messages"] else state["last_seq"] + 1
        return StreamState(
            messages=state["messages"], bytes=state["bytes"], first_seq=first, last_seq=state["last_seq"]
        )

    async def consumer_state(self, stream: str, consumer: str) -> ConsumerState:
        info = await call(self._connection, f"CONSUMER.INFO.{stream}.{consumer}", {}, f"state of {stream} {consumer}")
        return ConsumerState(
            waiting=info["num_pending"], in_flight=info["num_ack_pending"], redelivered=info["num_redelivered"]
        )

    async def get(self, bucket: str, key: str) -> Entry | None:
        return await self._buckets.get(bucket, key)

    async def put(self, bucket: str, key: str, value: bytes) -> int:
        return await self._buckets.put(bucket, key, value)

    async def update(self, bucket: str, key: str, value: bytes, revision: int) -> int:
        return await self._buckets.update(bucket, key, value, revision)

    async def delete(self, bucket: str, key: str) -> None:
        await self._buckets.delete(bucket, key)

    async def keys(self, bucket: str) -> list[str]:
        return await self._buckets.keys(bucket)

    def watch(self, bucket: str) -> AsyncIterator[Entry]:
        return self._buckets.watch(bucket)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._connection.on_reconnect(callback)

    async def close(self) -> None:
        await self._connection.close()


_GONE = (10037, 10057)
"""No such message, and deleting it failed."""


def _refusal(what: str, error: dict[str, Any]) -> BusError:
    """The server's refusal of a publish as one of the protocol's errors."""
    code, description = error.get("err_code", 0), error.get("description", "")
    text = f"{what}: {description} ({code})"
    if code in (10071, 10164):
        return SequenceConflict(text)
    if code == 10077 and "per subject" in description:
        return SubjectTaken(text)
    if code in (10077, 10047, 10023):
        return StreamFull(text)
    if code == 10054:
        return TooLarge(text)
    return BusError(text)


def _record(stored: Stored) -> Record:
    return Record(seq=stored.seq, subject=stored.subject, data=stored.data, at=stored.at)
