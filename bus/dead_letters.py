"""What is announced in DEAD and wants an end: nobody else waits for it, and its group would be pending for ever.

    the broker's MAX_DELIVERIES   the message used its deliveries up and stands in its queue, where nobody gets it
    a letter `UNREADABLE`         a worker met a message that is none; all that is known of it is its subject

Followed by the sampler, beside its reaper. The position is kept on the bus, so that a sampler that starts again doesn't
bury anew what was consumed and trimmed long ago; what a crash repeats is harmless.
"""

from collections.abc import Awaitable, Callable

import structlog

from bus import codec, topology
from bus.broker import Record
from bus.messages import Dead
from bus.reaper import Reaper
from bus.run_bus import RunBus
from bus.worker import UNREADABLE

log = structlog.get_logger()
_POSITION = "dead-read"


class DeadLetters:
    """`on_unreadable(stream, subject, why)` leaves the terminal trace of what only its subject is known of."""

    def __init__(self, bus: RunBus, reaper: Reaper, on_unreadable: Callable[[str, str, str], Awaitable[None]]) -> None:
        self._bus = bus
        self._reaper = reaper
        self._on_unreadable = on_unreadable

    async def follow(self) -> None:
        """Until cancelled."""
        position = -1
        while True:
            try:
                if position < 0:
                    entry = await self._bus.broker.get(self._bus.names.sampler, _POSITION)
                    position = int(entry.value) if entry is not None and entry.value else 0
                records = await self._bus.broker.read(self._bus.names.dead, position + 1)
                for record in records:
                    await self._take(record)
                    position = record.seq
                if records:
                    await self._bus.broker.put(self._bus.names.sampler, _POSITION, str(position).encode())
            except TimeoutError as error:
                log.info("no answer, asking again", why=str(error))

    async def _take(self, record: Record) -> None:
        advisory = topology.advisory(record.data)
        if advisory is not None:
            if advisory.type == topology.MAX_DELIVERIES:
                why = f"it was delivered {advisory.deliveries} times and never finished"
                await self._reaper.give_up(advisory.stream, advisory.stream_seq, why, deliveries=advisory.deliveries)
            return
        try:
            letter = codec.decode(record.data, Dead)
        except codec.Refused as error:
            log.warning("message refused", subject=record.subject, reason=error.reason, detail=str(error))
            return
        if letter.reason == UNREADABLE:
            await self._on_unreadable(letter.stream, letter.subject, letter.reason)
