"""The server side of the in-memory broker: what would stand on its disk, and who is connected."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from bus.broker import Missing
from bus.changes import Changes
from bus.memory_streams import Advisory, BucketMemory, ConsumerMemory, StreamMemory
from bus.subjects import matches
from core.clock import Clock


class Connected(Protocol):
    """What the server needs to know of a connection."""

    subscriptions: dict[int, tuple[str, Callable[[str, bytes], None]]]

    @property
    def is_connected(self) -> bool: ...
    def reconnected(self) -> None: ...


MAX_MESSAGE = 8 * 1024 * 1024 - 1024


class MemoryServer:
    """What would stand on the broker's disk, and who is connected."""

    def __init__(self, clock: Clock, latency_s: Callable[[], float] | None = None) -> None:
        self.clock = clock
        self.latency_s = latency_s
        self.max_message = MAX_MESSAGE
        self.is_up = True
        self.streams: dict[str, StreamMemory] = {}
        self.buckets: dict[str, BucketMemory] = {}
        self.brokers: list[Connected] = []
        self.connectivity = Changes()

    def stop(self) -> None:
        """An outage begins: nobody is answered."""
        self.is_up = False

    def start(self) -> None:
        """The outage ends; everybody reconnects."""
        self.is_up = True
        for broker in list(self.brokers):
            broker.reconnected()

    def publish(self, subject: str, data: bytes, expect_last_seq: int | None = None) -> int:
        """Store a message, and show it to those who are subscribed."""
        for stream in self.streams.values():
            if stream.takes(subject):
                self.refresh(stream)
                at, now = self.clock.now(), self.clock.monotonic()
                seq = stream.store(subject, data, expect_last_seq, at=at, now=now)
                if not stream.spec.work_queue:
                    self._show(subject, data)
                return seq
        raise Missing(f"no stream takes {subject!r}; was `ensure` called for this run?")

    def _show(self, subject: str, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for broker in self.brokers:
            for wanted, callback in broker.subscriptions.values():
                if broker.is_connected and matches(wanted, subject):
                    loop.call_soon(callback, subject, data)

    def announce(self, advisories: list[Advisory]) -> None:
        for advisory in advisories:
            if any(stream.takes(advisory.subject) for stream in self.streams.values()):
                self.publish(advisory.subject, advisory.data)

    def stream(self, name: str) -> StreamMemory:
        if name not in self.streams:
            raise Missing(f"stream {name} does not exist")
        self.refresh(self.streams[name])
        return self.streams[name]

    def consumer(self, stream: str, name: str) -> ConsumerMemory:
        found = self.stream(stream).consumers.get(name)
        if found is None:
            raise Missing(f"stream {stream} has no consumer {name}")
        return found

    def bucket(self, name: str) -> BucketMemory:
        if name not in self.buckets:
            raise Missing(f"bucket {name} does not exist")
        self.buckets[name].expire(self.clock.monotonic())
        return self.buckets[name]

    def refresh(self, stream: StreamMemory) -> None:
        stream.expire(self.clock.monotonic())
