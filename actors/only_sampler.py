"""One prompt sampler per run: two would admit the same draws, each at the cost of the other's cursor.

A sampler that died is no other one: its last beat expires, and whoever takes its place waits for that. So only a beat
that is followed by a newer one counts. Of several that begin at once the first by name goes on.
"""

import asyncio
from collections.abc import Callable

from actors.actor import Actor
from bus.messages import Beat
from bus.reaper import leaving
from configs.load import ConfigError


class OtherSampler(ConfigError):
    """Somebody else admits for this run."""


async def wait_until_alone(actor: Actor, admitting: Callable[[Beat], bool]) -> None:
    """Returns when no other sampler of the run is alive, or all that are wait themselves, behind this one. Raises
    OtherSampler when one is alive and admits."""
    first: dict[tuple[str, int], float] = {}
    while not actor.stopping.is_set():
        try:
            beats = await actor.bus.beats()
        except TimeoutError:  # the broker is away: ask again
            await asyncio.sleep(actor.config.bus.beat_s)
            continue
        others = [b for b in beats if b.kind == actor.kind and b.actor != actor.name and not leaving(b)]
        for beat in others:
            if admitting(beat) and beat.at > first.setdefault((beat.actor, beat.pid), beat.at):
                raise OtherSampler(
                    f"run {actor.bus.run_id!r} has a prompt sampler, {beat.actor} (process {beat.pid} on {beat.host}): "
                    "one is enough; stop that one first if this one is to take its place"
                )
        if not any(admitting(beat) or beat.actor < actor.name for beat in others):
            return
        await asyncio.sleep(actor.config.bus.beat_s / 2)
