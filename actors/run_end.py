"""The end of a run, as an actor sees it that nobody supervises: the chain says `finished`, and who makes work leaves
before who does it, who records leaves last. A supervisor stops actors in the same order.

A chain that finished at fewer steps than the config asks for is not at its end: the learner will take it up again.
"""

import asyncio
from collections.abc import Iterable

import structlog

from actors.stalled import tell
from bus.messages import Beat
from bus.run_bus import RunBus
from core.clock import Clock

log = structlog.get_logger()
ORDER = (("sampler", "generator", "gateway"), ("learner", "evaluator"), ("checkpointer",), ("recorder",))
"""Kinds of actors, those that leave first in front."""
PATIENCE_S = 120.0
"""For those that should leave earlier; one that hangs doesn't hold the others for ever."""


async def run_has_ended(
    bus: RunBus, kind: str, *, steps: int, look_every_s: float, clock: Clock, patience_s: float = PATIENCE_S
) -> None:
    """Returns when the run has made its `steps` and it is the turn of actors of this `kind` to leave."""
    while not await _finished(bus, steps):  # noqa: ASYNC110  what is waited for stands in the broker
        await asyncio.sleep(look_every_s)
    deadline = clock.monotonic() + patience_s
    while waiting := await _before(bus, kind):
        if clock.monotonic() > deadline:
            others = ", ".join(waiting)
            await tell(bus, f"{bus.actor} waited {patience_s:g} s, since the run is finished, for {others} to leave")
            return
        await asyncio.sleep(look_every_s)
    log.info("the run is finished: leaving", steps=steps)


async def _finished(bus: RunBus, steps: int) -> bool:
    try:
        last = await bus.last_step()
    except TimeoutError:  # an outage: look again
        return False
    return last is not None and last.kind == "finished" and last.step >= steps


async def _before(bus: RunBus, kind: str) -> list[str]:
    """Actors that are here and should leave before one of this kind does."""
    try:
        return sorted(beat.actor for beat in leaves_before(kind, await bus.beats()))
    except TimeoutError:
        return ["(the broker does not answer)"]


def leaves_before(kind: str, beats: Iterable[Beat]) -> list[Beat]:
    """Of `beats`, those of actors that are not leaving yet and go before one of this kind does."""
    place = next(at for at, kinds in enumerate(ORDER) if kind in kinds)
    earlier = [name for kinds in ORDER[:place] for name in kinds]
    return [beat for beat in beats if beat.kind in earlier and not beat.gauges.get("leaving")]
