"""The reaper: sees actors die and hands their work on at once, although ack_wait is long.

Lives in the prompt sampler's process. It watches the beats: a key that expires, or a beat of the same actor from
another process, means that the process behind the last beat is dead; what it held is nakked. Work that was in the
hands of `max_deaths` workers when they died is poison: it gets its terminal trace (tombstones, an `infra` verdict) so
that nobody waits for it, and is buried with everything that is needed to understand it.

A beat that nobody saw, since the reaper was dead as well or two came close together, is not lost: what a process holds
stands in a bucket of its own until it holds nothing, and the reaper looks there for processes that no longer beat.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from bus import facts
from bus.holders import process
from bus.messages import Beat, Dead, Held
from bus.run_bus import RunBus

log = structlog.get_logger()
_LOOKS = 4
"""So often in `dead_after_s` the reaper looks for processes that hold something and are no more."""


def leaving(beat: Beat) -> bool:
    """The last beat of an actor that goes of its own will: it holds nothing, and its key may expire in peace."""
    return beat.gauges.get("leaving") == 1.0


class Reaper:
    """`on_poison(stream, subject, payload, why)` leaves the terminal trace of a message that is given up."""

    def __init__(
        self, bus: RunBus, *, max_deaths: int, on_poison: Callable[[str, str, bytes, str], Awaitable[None]]
    ) -> None:
        self._bus = bus
        self._max_deaths = max_deaths
        self._on_poison = on_poison
        self.beats: dict[str, Beat] = {}
        """The last beat of every actor that is alive."""
        self._reaped: set[str] = set()
        """Processes whose death was seen to."""
        self._connected_at = bus.clock.monotonic()
        bus.on_reconnect(self._reconnected)

    def _reconnected(self) -> None:
        self._connected_at = self._bus.clock.monotonic()

    async def see(self, actor: str, beat: Beat | None) -> None:
        """Take what the watch of the actors bucket says."""
        before = self.beats.get(actor)
        if beat is None:
            self.beats.pop(actor, None)
            if before is not None and not leaving(before):
                await self._dead(before)
            return
        self.beats[actor] = beat
        self._reaped.discard(process(beat))
        if (
            before is not None
            and not leaving(before)
            and (before.life, before.pid, before.host) != (beat.life, beat.pid, beat.host)
        ):
            await self._dead(before)

    async def sweep(self, dead_after_s: float) -> None:
        """Until cancelled: find the deaths that `see` was not told of."""
        while True:
            # After an outage all beats have expired: whoever lives gets as long as ever to beat again. One whose name
            # another process has is dead at any time.
            steady = self._bus.clock.monotonic() >= self._connected_at + dead_after_s
            try:
                holders = await self._bus.holders.all()
                beats = await self._bus.beats() if holders else []
                alive, names = {process(beat) for beat in beats}, {beat.actor for beat in beats}
                for beat in holders:
                    if process(beat) not in alive and (steady or beat.actor in names):
                        await self._dead(beat)
            except TimeoutError as error:
                log.info("no answer, asking again", why=str(error))
            await asyncio.sleep(dead_after_s / _LOOKS)

    async def _dead(self, beat: Beat) -> None:
        if process(beat) in self._reaped:
            return
        self._reaped.add(process(beat))
        log.info("an actor died", who=beat.actor, pid=beat.pid, held=len(beat.held))
        try:
            for held in beat.held:
                await self._hand_on(held)
            await self._bus.holders.forget(beat)
        except BaseException:
            self._reaped.discard(process(beat))
            raise
        await self._bus.fact(facts.DIED, kind=beat.kind, actor=beat.actor, pid=beat.pid, handed_on=len(beat.held))

    async def _hand_on(self, held: Held) -> None:
        if any((held.stream, held.seq) == (h.stream, h.seq) for beat in self.beats.values() for h in beat.held):
            return  # somebody else has it already; a nak through the old delivery would call it back from them
        deaths = await self._bus.count_up(f"deaths-{held.stream}-{held.seq}")
        if deaths < self._max_deaths:
            await self._bus.broker.nak_reply(held.reply)
            return
        why = f"{deaths} workers died while they worked on it"
        await self.give_up(held.stream, held.seq, why, deliveries=deaths, deaths=deaths)

    async def give_up(self, stream: str, seq: int, why: str, *, deliveries: int, deaths: int = 0) -> None:
        """The end of a message that stands in a queue and that nobody is to work on any more."""
        found = await self._bus.broker.read(stream, seq, 1, 0.0)
        if not found or found[0].seq != seq:
            return
        log.error("work given up", stream=stream, subject=found[0].subject, why=why, fact=facts.POISONED)
        await self._on_poison(stream, found[0].subject, found[0].data, why)
        await self._bus.bury(
            Dead(
                run_id=self._bus.run_id,
                stream=stream,
                subject=found[0].subject,
                reason=why,
                deliveries=deliveries,
                payload=found[0].data,
                at=self._bus.clock.now(),
            )
        )
        await self._bus.broker.remove(stream, seq)  # last: a crash before this only repeats what was done
        await self._bus.fact(facts.POISONED, stream=stream, key=found[0].subject, deaths=deaths, why=why)
