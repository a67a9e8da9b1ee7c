"""What the processes of a run log as troubles, for the person who watches it: each trouble once.

A broker that is lost is lost to all: who loses it first says so, and one line tells when all have it back. What is a
fact as well is told by the fact.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from runners.logs import MENDED, words

Feed = Callable[[Mapping[str, Any]], None]
OF_ALL = {"bus.trying", "bus.unclean_close", "beat not stored"}
"""What many actors meet at once when their broker does not answer."""
OF_ALL_EVERY_S = 60.0
"""Such a thing is told again after this long."""


class Troubles:
    """`take` gets every log line of every process; `feed` gets an `error` event (`runners.live_state`) for what is
    worth one."""

    def __init__(self, feed: Feed, clock: Callable[[], float] = time.time) -> None:
        self._feed, self._clock = feed, clock
        self._without: dict[str, bool] = {}
        """Who lost the broker in this outage -> whether it is without it still."""
        self._told_at: dict[str, float] = {}

    def take(self, actor: str, event: Mapping[str, Any]) -> None:
        name = str(event.get("event"))
        if name.startswith("died ("):
            self._without.pop(actor, None)  # it has nothing to get back
        if event.get("level") not in ("warning", "error", "critical") or "fact" in event:
            return
        if name == "bus.disconnected":
            first, self._without[actor] = not self._without, True
            if not first:
                return
        elif name == "bus.reconnected" and self._without:
            self._without[actor] = False
            if any(self._without.values()):
                return
            actor = actor if len(self._without) == 1 else f"all {len(self._without)}"
            self._without.clear()
        elif name in OF_ALL:
            now, before = self._clock(), self._told_at.get(name)
            if before is not None and 0 <= now - before < OF_ALL_EVERY_S:
                return
            self._told_at[name] = now
        self._feed(
            {"type": "error", "actor": actor, "text": words(event), "at": self._clock(), "mended": name in MENDED}
        )
