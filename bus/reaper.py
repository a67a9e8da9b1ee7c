"""The reaper: sees actors die and hands their work on at once, although ack_wait is long.

Lives in the prompt sampler's process. It watches the beats: a key that expires, or a beat of the same actor from
another process, means that the process behind the last beat is dead; what it held is nakked. Work that was in the
hands of `max_deaths` workers when they died is poison: it gets its terminal trace (tombstones, an `infra` verdict) so
that nobody waits for it, and is buried with everything that is needed to understand it.
"""

from collections.abc import Awaitable, Callable

import structlog

from bus import facts
from bus.messages import Beat, Dead, Held
from bus.run_bus import RunBus

log = structlog.get_logger()


def leaving(beat: Beat) -> bool:
    """The last beat of an actor that goes of its own will: it holds nothing, and its key may expire in peace."""
    return beat.gauges.get("leaving") == 1.0


class Reaper:
    """`on_poison(stream, payload, why)` leaves the terminal trace of a message that is given up."""

    def __init__(
        self, bus: RunBus, *, max_deaths: int, on_poison: Callable[[str, bytes, str], Awaitable[None]]
    ) -> None:
        self._bus = bus
        self._max_deaths = max_deaths
        self._on_poison = on_poison
        self.beats: dict[str, Beat] = {}
        """The last beat of every actor that is alive."""

    async def see(self, actor: str, beat: Beat | None) -> None:
        """Take what the watch of the actors bucket says."""
        before = self.beats.get(actor)
        if beat is None:
            self.beats.pop(actor, None)
            if before is not None and not leaving(before):
                await self._dead(before)
            return
        self.beats[actor] = beat
        if before is not None and not leaving(before) and (before.pid, before.host) != (beat.pid, beat.host):
            await self._dead(before)

    async def _dead(self, beat: Beat) -> None:
        log.info("an actor died", who=beat.actor, pid=beat.pid, held=len(beat.held))
        for held in beat.held:
            await self._hand_on(held)
        await self._bus.fact(facts.DIED, kind=beat.kind, actor=beat.actor, pid=beat.pid, handed_on=len(beat.held))

    async def _hand_on(self, held: Held) -> None:
        if any((held.stream, held.seq) == (h.stream, h.seq) for beat in self.beats.values() for h in beat.held):
            return  # somebody else has it already; a nak through the old delivery would call it back from them
        deaths = await self._bus.count_up(f"deaths-{held.stream}-{held.seq}")
        if deaths < self._max_deaths:
            await self._bus.broker.nak_reply(held.reply)
            return
        found = await self._bus.broker.read(held.stream, held.seq, 1, 0.0)
        if not found or found[0].seq != held.seq:
            return
        payload, why = found[0].data, f"{deaths} workers died while they worked on it"
        await self._on_poison(held.stream, payload, why)
        await self._bus.bury(
            Dead(
                run_id=self._bus.run_id,
                stream=held.stream,
                subject=f"seq {held.seq}",
                reason=why,
                deliveries=deaths,
                payload=payload,
                at=self._bus.clock.now(),
            )
        )
        await self._bus.broker.remove(held.stream, held.seq)  # last: a crash before this only repeats what was done
        await self._bus.fact(facts.POISONED, stream=held.stream, key=str(held.seq), deaths=deaths, why=why)
