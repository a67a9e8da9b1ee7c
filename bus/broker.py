"""The broker protocol: what the system asks of a message broker, and nothing more.

Two implementations: `bus.nats` (a real server with JetStream) and `bus.memory` (a twin for the simulation). One
conformance suite runs over both. `bus.run_bus` puts typed messages on top; actors use only that.

Semantics that everything above relies on:
- A subject of a stream with `unique` holds at most one message; a second publish raises SubjectTaken while the first
  stands. After an ack (work queue) or a trim the same subject is accepted again: a filter, not the guarantee.
- A fetched delivery is redelivered when neither `in_progress`, `ack` nor `nak` reaches the broker within `ack_wait_s`.
- `publish(expect_last_seq=n)` succeeds only when the stream's last message on that subject has sequence n (0: none).
- Nothing waits without a deadline; one that passes raises TimeoutError with a text that says who waited for what.
- An ack or nak through an earlier delivery of a message counts, as long as the message is in flight again.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec


class BusError(Exception):
    """Base of all errors that the bus raises."""


class SubjectTaken(BusError):
    """A message with this key already stands in the stream."""


class StreamFull(BusError):
    """The stream is at its limit; the publisher waits and tries again with the same key."""


class SequenceConflict(BusError):
    """Compare-and-set failed: somebody else wrote first."""


class TopologyDrift(BusError):
    """A stream, consumer or bucket exists with other settings than the topology table says."""


class TooLarge(BusError):
    """The message is above the limit; it must go by claim check."""


class Missing(BusError):
    """The stream, consumer or bucket does not exist; `ensure` was not called for this run, or not with this table."""


class Unreachable(BusError):
    """No server answered when connecting, or it refused the token."""


class NoConnection(TimeoutError):
    """The server could not be reached for as long as a call may take; it may be back for the next one."""


class ConnectionLost(BusError):
    """The connection is over for good: closed here, or by the server. The process is expected to end."""


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as the topology table states it."""

    name: str
    subjects: tuple[str, ...]
    work_queue: bool = False
    unique: bool = False
    """At most one standing message per subject; a second is refused (work queues, episodes)."""
    latest: bool = False
    """At most one standing message per subject; a second replaces the first (verdicts)."""
    max_age_s: float = 0.0
    max_messages: int = -1
    max_bytes: int = -1


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A shared durable pull consumer of a work queue."""

    stream: str
    name: str
    filter: str
    ack_wait_s: float = 60.0
    max_deliver: int = -1
    max_ack_pending: int = 1024


class BucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A key-value bucket. With `ttl_s`, keys vanish when they are not rewritten, and watchers are told."""

    name: str
    ttl_s: float = 0.0
    history: int = 1


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    streams: tuple[StreamSpec, ...]
    consumers: tuple[ConsumerSpec, ...]
    buckets: tuple[BucketSpec, ...]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a log, at its position."""

    seq: int
    subject: str
    data: bytes
    at: float
    """When the broker stored it, seconds since the epoch."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A key's value in a bucket; `value` is None when the key was deleted or expired."""

    key: str
    value: bytes | None
    revision: int


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """`first_seq` is the oldest standing message's sequence (`last_seq` + 1 when the stream is empty)."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    waiting: int
    """Messages not yet delivered."""
    in_flight: int
    """Delivered and not yet acknowledged."""
    redelivered: int


class Delivery(Protocol):
    """One message of a work queue in this process's hands."""

    stream: str
    subject: str
    data: bytes
    seq: int
    deliveries: int
    """1 for the first."""
    reply: str
    """Where acks go; another process may nak through it (`Broker.nak_reply`)."""

    async def in_progress(self) -> None: ...
    async def ack(self) -> None:
        """Returns once the broker has it (double ack); TimeoutError when it does not answer."""
        ...

    async def nak(self, delay_s: float = 0.0) -> None: ...
    async def term(self) -> None: ...


class Broker(Protocol):
    """A connection. All calls may be used from one event loop only."""

    @property
    def max_message(self) -> int:
        """Largest payload in bytes; `publish` raises TooLarge above it."""
        ...

    async def ensure(self, topology: Topology) -> None:
        """Create what is missing; raise TopologyDrift for what differs. Idempotent."""
        ...

    async def publish(
        self, subject: str, data: bytes, *, expect_last_seq: int | None = None, timeout_s: float = 10.0
    ) -> int:
        """Store a message and return its sequence; repeats itself over reconnects until `timeout_s`. A repeat of what
        was stored although its answer was lost returns the same sequence, within a minute; a caller that tries again
        itself, after TimeoutError, sees SubjectTaken (unique) or SequenceConflict (compare-and-set)."""
        ...

    async def fetch(self, stream: str, consumer: str, timeout_s: float = 5.0) -> Delivery | None:
        """The next delivery, or None when there is none within `timeout_s` (≤ 5 s)."""
        ...

    async def read(self, stream: str, from_seq: int, limit: int = 256, timeout_s: float = 1.0) -> list[Record]:
        """Standing messages with sequence ≥ from_seq in order, at most `limit` and at most 32 MB; waits up to
        `timeout_s` for the first."""
        ...

    async def last(self, stream: str, subject: str) -> Record | None:
        """The newest standing message on exactly this subject."""
        ...

    async def trim(self, stream: str, below_seq: int) -> None:
        """Remove messages with sequence < below_seq."""
        ...

    async def remove(self, stream: str, seq: int) -> bytes | None:
        """Take one message out of a stream and return it, or None when it is gone. Of a message in flight the broker
        announces that it was terminated."""
        ...

    def subscribe(self, subject: str, callback: Callable[[str, bytes], None]) -> "Subscription":
        """Call back with (subject, data) for whatever is stored in a log (not: a work queue) on this subject from now
        on. A `last` or `read` asked for after `subscribe` returned leaves no gap. Survives reconnects, but what is
        stored while disconnected is missed: look at `last` after `on_reconnect`."""
        ...

    async def nak_reply(self, reply: str) -> None:
        """Nak another process's delivery, so that it is redelivered at once."""
        ...

    async def stream_state(self, stream: str) -> StreamState: ...
    async def consumer_state(self, stream: str, consumer: str) -> ConsumerState: ...

    async def get(self, bucket: str, key: str) -> Entry | None: ...
    async def put(self, bucket: str, key: str, value: bytes) -> int: ...
    async def update(self, bucket: str, key: str, value: bytes, revision: int) -> int:
        """Compare-and-set; revision 0 means the key must not exist. Raises SequenceConflict."""
        ...

    async def delete(self, bucket: str, key: str) -> None: ...
    async def keys(self, bucket: str) -> list[str]: ...
    def watch(self, bucket: str) -> AsyncIterator[Entry]:
        """All keys as they stand, then every change; value None for a deleted or expired key."""
        ...

    def on_reconnect(self, callback: Callable[[], None]) -> None: ...
    async def close(self) -> None: ...


class Subscription(Protocol):
    async def started(self) -> None:
        """Returns when the broker knows of it: what is published from now on is seen."""
        ...

    async def stop(self) -> None: ...
