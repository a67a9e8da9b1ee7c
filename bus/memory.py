"""`MemoryBroker`: the broker protocol without a server, for the simulation.

Several brokers share one `MemoryServer`; `MemoryBroker(server, "sampler")` is a connection. The server's time is the
clock it is given, waiting is asyncio's: on a virtual-time loop whose clock is handed in, hours pass in milliseconds and
equal seeds give equal runs.

What a real connection can suffer can be done to it: `server.stop()` and `start()` (an outage; what was stored stays),
`broker.cut()` and `heal()` (one connection is down), `broker.kill()` (its process died: nothing is put back).
`latency_s` is asked before and after every effect, so that a caller may be cancelled with its effect done and its
answer lost, as on a network.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from bus.broker import (
    ConnectionLost,
    ConsumerState,
    Entry,
    Record,
    StreamState,
    TooLarge,
    Topology,
    TopologyDrift,
)
from bus.memory_server import MemoryServer
from bus.memory_streams import Advisory, BucketMemory, Cell, ConsumerMemory, StreamMemory
from bus.subjects import bucket_key, pattern
from bus.watching import Watching

MAX_READ_BYTES = 32 * 1024 * 1024
_MIN_FETCH_S, _MAX_FETCH_S = 0.02, 5.0
_ANSWER_S = 10.0
_LOOK_AGAIN_S = 5.0

T = TypeVar("T")


class MemoryDelivery:
    """`bus.broker.Delivery`."""

    def __init__(self, broker: "MemoryBroker", stream: str, consumer: str, record: Record, deliveries: int) -> None:
        self._broker = broker
        self.stream = stream
        self.subject = record.subject
        self.data = record.data
        self.seq = record.seq
        self.deliveries = deliveries
        self.reply = f"$JS.ACK.{stream}.{consumer}.{deliveries}.{record.seq}.0.0.0"

    async def in_progress(self) -> None:
        if self._broker.is_connected:
            self._broker._respond(self.reply, "progress", 0.0)

    async def ack(self) -> None:
        await self._broker._answer(self.reply, "ack")

    async def nak(self, delay_s: float = 0.0) -> None:
        await self._broker._answer(self.reply, "nak", delay_s)

    async def term(self) -> None:
        await self._broker._answer(self.reply, "term")


class MemoryBroker:
    """A connection; `bus.broker.Broker`."""

    def __init__(self, server: MemoryServer, name: str = "") -> None:
        self._server = server
        self._name = name
        self._gone: str = ""
        self._is_cut = False
        self._generation = 0
        self.subscriptions: dict[int, tuple[str, Callable[[str, bytes], None]]] = {}
        self._numbers = 0
        self._on_reconnect: list[Callable[[], None]] = []
        server.brokers.append(self)

    @property
    def max_message(self) -> int:
        return self._server.max_message

    # What can happen to a connection ---------------------------------------------------------------------------------

    def cut(self) -> None:
        self._is_cut = True

    def heal(self) -> None:
        self._is_cut = False
        self.reconnected()

    def kill(self) -> None:
        """As if its process had died: what it held stays held until `ack_wait_s` has passed or somebody naks it."""
        self._end("its process was killed")

    async def close(self) -> None:
        self._end("it was closed here")

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._on_reconnect.append(callback)

    @property
    def is_connected(self) -> bool:
        return self._server.is_up and not self._is_cut and not self._gone

    def _end(self, why: str) -> None:
        if not self._gone:
            self._gone = why
            self.subscriptions.clear()
            self._server.brokers.remove(self)
            self._server.connectivity.fire()

    def reconnected(self) -> None:
        self._generation += 1
        self._server.connectivity.fire()
        if self.is_connected:
            for callback in self._on_reconnect:
                callback()

    async def _reach(self, deadline: float, what: str) -> None:
        """One way over the wire, waiting for the connection until `deadline` (loop time)."""
        if not await self._try_reach(deadline):
            raise TimeoutError(f"no connection for {self._name}: {what}")

    async def _try_reach(self, deadline: float) -> bool:
        await asyncio.sleep(self._server.latency_s() if self._server.latency_s else 0)
        while not self.is_connected:
            if self._gone:
                raise ConnectionLost(f"connection {self._name}: {self._gone}")
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return False
            await self._server.connectivity.wait(self._server.connectivity.count, left_s)
        return True

    async def _call(self, effect: Callable[[], T], what: str, timeout_s: float = _ANSWER_S) -> T:
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self._reach(deadline, what)
        result = effect()
        await self._reach(deadline, what)
        return result

    # The protocol ----------------------------------------------------------------------------------------------------

    async def ensure(self, topology: Topology) -> None:
        await self._call(lambda: self._ensure(topology), "ensuring the topology")

    def _ensure(self, topology: Topology) -> None:
        server = self._server
        for stream_spec in topology.streams:
            stream = server.streams.setdefault(stream_spec.name, StreamMemory(stream_spec))
            _compare(f"stream {stream_spec.name}", stream.spec, stream_spec)
        for bucket_spec in topology.buckets:
            bucket = server.buckets.setdefault(bucket_spec.name, BucketMemory(bucket_spec))
            _compare(f"bucket {bucket_spec.name}", bucket.spec, bucket_spec)
        for spec in topology.consumers:
            consumer = server.stream(spec.stream).consumers.setdefault(spec.name, ConsumerMemory(spec))
            _compare(f"consumer {spec.name} of {spec.stream}", consumer.spec, spec)

    async def publish(
        self, subject: str, data: bytes, *, expect_last_seq: int | None = None, timeout_s: float = 10.0
    ) -> int:
        _refuse_large(subject, data, self.max_message)
        what = f"storing {len(data)} bytes on {subject}"
        return await self._call(lambda: self._server.publish(subject, data, expect_last_seq), what, timeout_s)

    async def fetch(self, stream: str, consumer: str, timeout_s: float = 5.0) -> MemoryDelivery | None:
        loop, server = asyncio.get_running_loop(), self._server
        deadline = loop.time() + min(max(timeout_s, _MIN_FETCH_S), _MAX_FETCH_S)
        while await self._try_reach(deadline):
            found, changes = server.consumer(stream, consumer), server.stream(stream).changes
            taken = found.take(server.stream(stream), server.clock.monotonic())
            if isinstance(taken, Advisory):
                server.announce([taken])
                continue
            if taken is not None:
                delivery = MemoryDelivery(self, stream, consumer, *taken)
                try:
                    await self._reach(loop.time() + _ANSWER_S, f"a delivery of {stream}")
                except asyncio.CancelledError:
                    if not self._gone:
                        self._respond(delivery.reply, "nak", 0.0)
                    raise
                return delivery
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            due_s = max(0.0, found.next_due() - server.clock.monotonic())
            await changes.wait(changes.count, min(left_s, due_s))
        return None

    async def read(self, stream: str, from_seq: int, limit: int = 256, timeout_s: float = 1.0) -> list[Record]:
        loop, server = asyncio.get_running_loop(), self._server
        deadline = loop.time() + timeout_s
        while True:
            seen = server.stream(stream).changes.count
            found = await self._call(lambda: self._read(stream, from_seq, limit), f"messages of {stream}")
            left_s = deadline - loop.time()
            if found or left_s <= 0:
                return found
            await server.stream(stream).changes.wait(seen, left_s)

    def _read(self, stream: str, from_seq: int, limit: int) -> list[Record]:
        found: list[Record] = []
        nbytes = 0
        for record in self._server.stream(stream).standing(from_seq):
            nbytes += len(record.data)
            if len(found) == limit or (found and nbytes > MAX_READ_BYTES):
                break
            found.append(record)
        return found

    async def last(self, stream: str, subject: str) -> Record | None:
        return await self._call(lambda: self._server.stream(stream).last(subject), f"the last message on {subject}")

    async def trim(self, stream: str, below_seq: int) -> None:
        def effect() -> None:
            found = self._server.stream(stream)
            for seq in [seq for seq in found.messages if seq < below_seq]:
                found.drop(seq)

        await self._call(effect, f"trimming {stream}")

    async def remove(self, stream: str, seq: int) -> bytes | None:
        def effect() -> bytes | None:
            found = self._server.stream(stream)
            advisories = found.give_up(seq)
            record = found.drop(seq)
            self._server.announce(advisories)
            return record.data if record else None

        return await self._call(effect, f"taking #{seq} out of {stream}")

    def subscribe(self, subject: str, callback: Callable[[str, bytes], None]) -> "MemorySubscription":
        self._numbers += 1
        self.subscriptions[self._numbers] = (pattern(subject), callback)
        return MemorySubscription(self, self._numbers)

    async def nak_reply(self, reply: str) -> None:
        await self._answer(reply, "nak")

    async def _answer(self, reply: str, kind: str, delay_s: float = 0.0) -> None:
        await self._call(lambda: self._respond(reply, kind, delay_s), f"{kind} of {reply}")

    def _respond(self, reply: str, kind: str, delay_s: float) -> None:
        _, _, stream_name, consumer_name, _, seq_text, *_ = reply.split(".")
        server, seq = self._server, int(seq_text)
        stream, consumer = server.stream(stream_name), server.consumer(stream_name, consumer_name)
        flight = consumer.in_flight.get(seq)
        if flight is None:
            return
        if kind == "progress":
            flight.due = server.clock.monotonic() + consumer.spec.ack_wait_s
        elif kind == "nak":
            flight.due = server.clock.monotonic() + delay_s
            stream.changes.fire()
        else:
            advisories = stream.give_up(seq) if kind == "term" else []
            stream.drop(seq)
            server.announce(advisories)
            stream.changes.fire()  # one less in flight

    async def stream_state(self, stream: str) -> StreamState:
        return await self._call(lambda: self._server.stream(stream).state(), f"state of {stream}")

    async def consumer_state(self, stream: str, consumer: str) -> ConsumerState:
        def effect() -> ConsumerState:
            found = self._server.consumer(stream, consumer)
            waiting = found.waiting(self._server.stream(stream))
            return ConsumerState(waiting=waiting, in_flight=len(found.in_flight), redelivered=found.redelivered())

        return await self._call(effect, f"state of {stream} {consumer}")

    async def get(self, bucket: str, key: str) -> Entry | None:
        return await self._call(lambda: self._server.bucket(bucket).get(key), f"key {key} of {bucket}")

    async def put(self, bucket: str, key: str, value: bytes) -> int:
        return await self._write(bucket, key, lambda found, now: found.write(key, value, now))

    async def update(self, bucket: str, key: str, value: bytes, revision: int) -> int:
        return await self._write(bucket, key, lambda found, now: found.update(key, value, revision, now))

    async def delete(self, bucket: str, key: str) -> None:
        await self._write(bucket, key, lambda found, now: found.write(key, None, now))

    async def _write(self, bucket: str, key: str, write: Callable[[BucketMemory, float], int]) -> int:
        bucket_key(key)

        def effect() -> int:
            return write(self._server.bucket(bucket), self._server.clock.monotonic())

        return await self._call(effect, f"writing {key} of {bucket}")

    async def keys(self, bucket: str) -> list[str]:
        return await self._call(lambda: self._server.bucket(bucket).keys(), f"keys of {bucket}")

    async def watch(self, bucket: str) -> AsyncIterator[Entry]:
        server, position, generation = self._server, 0, self._generation
        clock = server.clock.monotonic
        watching = Watching(0.0)
        while True:
            found = await self._call(lambda: server.bucket(bucket), f"watching {bucket}")
            watching.ttl_s = found.spec.ttl_s
            if generation != self._generation:
                generation = self._generation
                watching.doubt(clock())
            seen = found.changes.count
            for cell in found.since(position):
                position = cell.entry.revision
                for entry in _seen(watching, cell, clock()):
                    yield entry
            for entry in watching.settle(clock()):
                yield entry
            due_s = max(0.0, min(found.next_due(), watching.next_due()) - clock())
            await found.changes.wait(seen, min(_LOOK_AGAIN_S, due_s))


def _seen(watching: Watching, cell: Cell, now: float) -> list[Entry]:
    if cell.has_expired:
        return watching.expired(cell.entry.key, cell.entry.revision, now)
    if cell.entry.value is None:
        return watching.deleted(cell.entry.key, cell.entry.revision)
    return watching.value(cell.entry)


class MemorySubscription:
    """`stop` ends it."""

    def __init__(self, broker: MemoryBroker, number: int) -> None:
        self._broker = broker
        self._number = number

    async def started(self) -> None:
        """At once: there is no way to the server."""

    async def stop(self) -> None:
        self._broker.subscriptions.pop(self._number, None)


def _compare(what: str, stands: object, wanted: object) -> None:
    if stands != wanted:
        raise TopologyDrift(f"{what} exists with other settings: it is {stands!r}, the table says {wanted!r}")


def _refuse_large(subject: str, data: bytes, limit: int) -> None:
    if len(data) > limit:
        raise TooLarge(f"{len(data)} bytes on {subject}, the broker takes {limit}")
