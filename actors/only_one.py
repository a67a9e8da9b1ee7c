"""One sampler, learner, recorder and checkpointer per run: a second one of a kind would undo what the first one does.

One that died is no other one: its last beat expires, and whoever takes its place waits for that. So only a beat that is
followed by a newer one counts. Of several that begin at once the first by name goes on.
"""

import asyncio

from bus.messages import Beat
from bus.reaper import leaving
from bus.run_bus import RunBus
from configs.load import ConfigError


class AnotherOne(ConfigError):
    """Somebody else does this run's work of this kind."""


def at_work(beat: Beat) -> bool:
    """Whether it has found itself alone."""
    return beat.gauges.get("at_work") == 1.0


async def wait_until_alone(bus: RunBus, kind: str, stopping: asyncio.Event, beat_s: float) -> bool:
    """True when no other actor of this kind is alive in the run, or all that are wait themselves, behind this one;
    False when asked to stop before. Raises AnotherOne when one is at work."""
    first: dict[tuple[str, int], float] = {}
    ahead = False
    while not stopping.is_set():
        try:
            beats = await bus.beats()
        except TimeoutError:  # the broker is away: ask again
            await asyncio.sleep(beat_s)
            continue
        others = [beat for beat in beats if beat.kind == kind and beat.actor != bus.actor and not leaving(beat)]
        for beat in others:
            if at_work(beat) and beat.at > first.setdefault((beat.actor, beat.pid), beat.at):
                raise AnotherOne(
                    f"run {bus.run_id!r} has a {kind}: {beat.actor} (process {beat.pid} on {beat.host}); one is "
                    f"enough: stop that one first if this one is to take its place"
                )
        if not any(at_work(beat) or beat.actor < bus.actor for beat in others):
            if not others or ahead:
                return True
            ahead = True  # one of them may have found itself alone before this one came, and say so in a moment
        else:
            ahead = False
        await asyncio.sleep(beat_s / 2)
    return False
