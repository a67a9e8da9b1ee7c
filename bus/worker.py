"""Work-queue workers: one message per free slot, beats while it is worked on, the effect first and the ack after.

    async def on_request(delivery, request): ...effect...        # returning acks, raising naks
    worker = Worker(bus, stream, consumer, Request, on_request, slots=4, ack_wait_s=60)
    await worker.run()                                           # until stop()

- A slot fetches one message only when it is free, so nothing waits in a process while another could work on it.
- The deliveries in hand (`held`) travel in the actor's beats: whoever sees its death hands them on at once.
- A death never counts against a message here. A handler that raises does: `max_failures` of them, and the message is
  poison: `on_poison` must leave its terminal trace (a tombstone, an infra verdict), it is buried and acknowledged.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from bus import facts
from bus.broker import Delivery
from bus.messages import Dead, Held, Message
from bus.run_bus import RunBus

M = TypeVar("M", bound=Message)
log = structlog.get_logger()
UNREADABLE = "refused: not a message of this schema"
"""Why a message is dead of which only the subject is known: the sampler leaves its terminal trace."""


class Retry(Exception):
    """Raised by a handler that can't work on this now; no failure of the message."""

    def __init__(self, delay_s: float, why: str) -> None:
        super().__init__(why)
        self.delay_s = delay_s


class Worker(Generic[M]):
    """`slots` concurrent handlers over one consumer of a work queue."""

    def __init__(
        self,
        bus: RunBus,
        *,
        stream: str,
        consumer: str,
        kind: type[M],
        handler: Callable[[Delivery, M], Awaitable[None]],
        on_poison: Callable[[M, str], Awaitable[None]],
        slots: int,
        ack_wait_s: float,
        max_failures: int = 3,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._consumer = consumer
        self._kind = kind
        self._handler = handler
        self._on_poison = on_poison
        self._slots = slots
        self._beat_s = ack_wait_s / 3
        self._max_failures = max_failures
        self._held: dict[int, Delivery] = {}
        self._stopping = asyncio.Event()
        self.held_changed = asyncio.Event()
        """Set when a delivery was taken or given back: the actor beats at once, so that a death right after is seen."""
        self.done = 0
        self.failures = 0

    @property
    def held(self) -> tuple[Held, ...]:
        return tuple(Held(stream=d.stream, seq=d.seq, reply=d.reply) for d in self._held.values())

    async def run(self) -> None:
        """Work until `stop`; returns when the handlers in progress are through."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._slots):
                tasks.create_task(self._slot())

    def stop(self) -> None:
        """Take no more work."""
        self._stopping.set()

    async def hand_back(self) -> None:
        """Nak everything in hand, so that others get it at once."""
        for delivery in list(self._held.values()):
            await delivery.nak()

    async def _slot(self) -> None:
        while not self._stopping.is_set():
            try:
                delivery = await self._bus.broker.fetch(self._stream, self._consumer, timeout_s=1.0)
            except TimeoutError as error:  # an outage: the queue is still there afterwards
                log.info("no answer, asking again", why=str(error))
                continue
            if delivery is None:
                continue
            if self._stopping.is_set():
                await delivery.nak()
                return
            await self._work(delivery)

    async def _work(self, delivery: Delivery) -> None:
        message = self._bus.read(delivery.data, self._kind, delivery.subject, fact=facts.REFUSED)
        if message is None:
            await self._bury(delivery, UNREADABLE)
            await self._bus.fact(facts.REFUSED, subject=delivery.subject, reason="not a message of this schema")
            await delivery.term()
            return
        self._held[delivery.seq] = delivery
        self.held_changed.set()
        beats = asyncio.create_task(self._beat(delivery))
        try:
            await self._handler(delivery, message)
            beats.cancel()
            await delivery.ack()
            self.done += 1
        except Retry as retry:
            log.info("put back", why=str(retry), delay_s=retry.delay_s, trace=message.trace)
            await delivery.nak(retry.delay_s)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failures += 1
            await self._failed(delivery, message, error)
        finally:
            beats.cancel()
            self._held.pop(delivery.seq, None)
            self.held_changed.set()

    async def _failed(self, delivery: Delivery, message: M, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        count = await self._bus.count_up(f"failed-{delivery.stream}-{delivery.seq}")
        log.error("handler failed", why=why, failures=count, trace=message.trace, where=traceback.format_exc(limit=8))
        if count < self._max_failures:
            await delivery.nak(min(2.0**count, 30.0))
            return
        await self._on_poison(message, why)
        await self._bury(delivery, why)
        await self._bus.fact(facts.POISONED, stream=delivery.stream, key=delivery.subject, deaths=0, why=why)
        await delivery.ack()

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        await self._bus.bury(
            Dead(
                run_id=self._bus.run_id,
                stream=delivery.stream,
                subject=delivery.subject,
                reason=reason,
                deliveries=delivery.deliveries,
                payload=delivery.data,
                at=self._bus.clock.now(),
            )
        )

    async def _beat(self, delivery: Delivery) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            with contextlib.suppress(TimeoutError):
                await delivery.in_progress()
