"""The state of the in-memory broker: streams, consumers and buckets as synchronous objects that are told the time.

It does what nats-server does as far as `bus.broker` promises it, the ugly parts included: a nak through an earlier
delivery redelivers again, naked messages count as in flight until they are delivered, and a message that used up its
deliveries stays in its queue, announced by an advisory.
"""

from collections.abc import Iterator

import msgspec

from bus.broker import (
    BucketSpec,
    ConsumerSpec,
    Entry,
    Record,
    SequenceConflict,
    StreamFull,
    StreamSpec,
    StreamState,
    SubjectTaken,
)
from bus.changes import Changes
from bus.subjects import matches
from bus.topology import MAX_DELIVERIES, TERMINATED

NEVER = float("inf")


class Advisory(msgspec.Struct, frozen=True):
    """What the broker says about a message that it gave up; goes to `subject`."""

    subject: str
    data: bytes


class Flight:
    """A message that was delivered and not yet acknowledged."""

    def __init__(self, deliveries: int, due: float) -> None:
        self.deliveries = deliveries
        self.due = due
        """When it is delivered again."""


class ConsumerMemory:
    """One shared durable consumer of a work queue."""

    def __init__(self, spec: ConsumerSpec) -> None:
        self.spec = spec
        self.in_flight: dict[int, Flight] = {}
        self.next_seq = 1
        """Everything below was delivered at least once, or isn't ours."""

    def take(self, stream: "StreamMemory", now: float) -> tuple[Record, int] | Advisory | None:
        """The next (message, its deliveries so far); an advisory when one was given up on the way (ask again)."""
        due = [(flight.due, seq) for seq, flight in self.in_flight.items() if flight.due <= now]
        if due:
            seq = min(due)[1]
            flight = self.in_flight[seq]
            if 0 < self.spec.max_deliver <= flight.deliveries:
                del self.in_flight[seq]
                return self.advisory("MAX_DELIVERIES", MAX_DELIVERIES, seq, flight.deliveries)
            flight.deliveries += 1
            flight.due = now + self.spec.ack_wait_s
            return stream.messages[seq], flight.deliveries
        if len(self.in_flight) < self.spec.max_ack_pending:
            for record in self._undelivered(stream):
                self.next_seq = record.seq + 1
                self.in_flight[record.seq] = Flight(1, now + self.spec.ack_wait_s)
                return record, 1
        return None

    def next_due(self) -> float:
        return min((flight.due for flight in self.in_flight.values()), default=NEVER)

    def waiting(self, stream: "StreamMemory") -> int:
        return sum(1 for _ in self._undelivered(stream))

    def redelivered(self) -> int:
        return sum(1 for flight in self.in_flight.values() if flight.deliveries > 1)

    def advisory(self, kind: str, type_: str, seq: int, deliveries: int) -> Advisory:
        body = {
            "type": type_,
            "stream": self.spec.stream,
            "consumer": self.spec.name,
            "stream_seq": seq,
            "deliveries": deliveries,
        }
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{self.spec.stream}.{self.spec.name}"
        return Advisory(subject, msgspec.json.encode(body))

    def _undelivered(self, stream: "StreamMemory") -> Iterator[Record]:
        return (record for record in stream.standing(self.next_seq) if matches(self.spec.filter, record.subject))


class StreamMemory:
    """One stream with its consumers."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.changes = Changes()
        self.consumers: dict[str, ConsumerMemory] = {}
        self.messages: dict[int, Record] = {}
        """By sequence, in order."""
        self.last_seq = 0
        self._by_subject: dict[str, dict[int, None]] = {}
        self._bytes = 0
        self._born: dict[int, float] = {}

    def takes(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.spec.subjects)

    def store(self, subject: str, data: bytes, expect_last_seq: int | None, *, at: float, now: float) -> int:
        """Append, or raise what the table's limits demand. `at` is wall time, `now` monotonic."""
        standing = self._by_subject.get(subject, {})
        newest = max(standing, default=0)
        if expect_last_seq is not None and newest != expect_last_seq:
            raise SequenceConflict(f"{subject}: expected last sequence {expect_last_seq}, it is {newest}")
        if self.spec.unique and standing:
            raise SubjectTaken(f"{subject} stands already, as #{newest} of {self.spec.name}")
        if self.spec.latest and standing:
            self.drop(newest)
        while self._is_full(_size(subject, data)):
            if not (self.spec.latest and self.messages):
                raise StreamFull(f"{self.spec.name} is full: {len(self.messages)} messages, {self._bytes} bytes")
            self.drop(next(iter(self.messages)))
        self.last_seq += 1
        self.messages[self.last_seq] = Record(seq=self.last_seq, subject=subject, data=data, at=at)
        self._by_subject.setdefault(subject, {})[self.last_seq] = None
        self._bytes += _size(subject, data)
        self._born[self.last_seq] = now
        self.changes.fire()
        return self.last_seq

    def expire(self, now: float) -> None:
        while self.spec.max_age_s and self.messages:
            oldest = next(iter(self.messages))
            if self._born[oldest] + self.spec.max_age_s > now:
                break
            self.drop(oldest)

    def standing(self, from_seq: int) -> Iterator[Record]:
        """Standing messages from `from_seq` on, in order."""
        first = next(iter(self.messages), self.last_seq + 1)
        for seq in range(max(from_seq, first), self.last_seq + 1):
            if seq in self.messages:
                yield self.messages[seq]

    def last(self, subject: str) -> Record | None:
        newest = max(self._by_subject.get(subject, {}), default=0)
        return self.messages.get(newest)

    def drop(self, seq: int) -> Record | None:
        """Take a message out, wherever it is."""
        record = self.messages.pop(seq, None)
        if record is None:
            return None
        del self._born[seq]
        self._bytes -= _size(record.subject, record.data)
        of_subject = self._by_subject[record.subject]
        del of_subject[seq]
        if not of_subject:
            del self._by_subject[record.subject]
        for consumer in self.consumers.values():
            consumer.in_flight.pop(seq, None)
        return record

    def give_up(self, seq: int) -> list[Advisory]:
        """The announcements for a message that is taken away while consumers hold it."""
        return [
            consumer.advisory("MSG_TERMINATED", TERMINATED, seq, consumer.in_flight[seq].deliveries)
            for consumer in self.consumers.values()
            if seq in consumer.in_flight
        ]

    def state(self) -> StreamState:
        first = next(iter(self.messages), self.last_seq + 1)
        return StreamState(messages=len(self.messages), bytes=self._bytes, first_seq=first, last_seq=self.last_seq)

    def _is_full(self, more: int) -> bool:
        spec = self.spec
        too_many = 0 <= spec.max_messages <= len(self.messages)
        return too_many or 0 <= spec.max_bytes < self._bytes + more


class Cell(msgspec.Struct, frozen=True):
    """The newest entry of a key, or the mark of its end, and when it was written."""

    entry: Entry
    at: float
    has_expired: bool = False


class BucketMemory:
    """One key-value bucket; a deleted or expired key leaves a mark with a revision of its own."""

    def __init__(self, spec: BucketSpec) -> None:
        self.spec = spec
        self.changes = Changes()
        self._cells: dict[str, Cell] = {}
        self._revision = 0

    def get(self, key: str) -> Entry | None:
        cell = self._cells.get(key)
        return cell.entry if cell is not None and cell.entry.value is not None else None

    def write(self, key: str, value: bytes | None, now: float, *, has_expired: bool = False) -> int:
        self._revision += 1
        self._cells[key] = Cell(Entry(key=key, value=value, revision=self._revision), now, has_expired)
        self.changes.fire()
        return self._revision

    def update(self, key: str, value: bytes, revision: int, now: float) -> int:
        cell = self._cells.get(key)
        stands = cell.entry.revision if cell is not None else 0
        gone = cell is None or cell.entry.value is None
        if stands != revision and not (revision == 0 and gone):
            raise SequenceConflict(f"key {key!r} of {self.spec.name}: expected revision {revision}, it is {stands}")
        return self.write(key, value, now)

    def keys(self) -> list[str]:
        return sorted(key for key, cell in self._cells.items() if cell.entry.value is not None)

    def since(self, revision: int) -> list[Cell]:
        """What has a revision above that, in order."""
        cells = [cell for cell in self._cells.values() if cell.entry.revision > revision]
        return sorted(cells, key=lambda cell: cell.entry.revision)

    def expire(self, now: float) -> None:
        """Mark what was not rewritten in time."""
        standing = [(cell.at, key) for key, cell in self._cells.items() if cell.entry.value is not None]
        for at, key in sorted(standing) if self.spec.ttl_s else ():
            if at + self.spec.ttl_s <= now:
                self.write(key, None, now, has_expired=True)

    def next_due(self) -> float:
        """When the next key expires."""
        standing = [cell.at for cell in self._cells.values() if cell.entry.value is not None]
        return min(standing) + self.spec.ttl_s if standing and self.spec.ttl_s else NEVER


def _size(subject: str, data: bytes) -> int:
    return len(subject) + len(data)
