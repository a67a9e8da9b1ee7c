"""What a watch of a bucket reports: every value, and the end of every key that it had reported.

A key that expires means that its owner is dead, unless nobody could rewrite it: after an outage (or a stall) of the
broker all keys expire at once, and would be taken for the death of the whole fleet. So from then on owners get `ttl_s`
to rewrite their keys; what expired is reported after that.
"""

from bus.broker import Entry


class Watching:
    """Pure; `now` is any clock that doesn't step back."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self._known: dict[str, int] = {}
        """Key -> revision that was reported last."""
        self._suspects: dict[str, int] = {}
        """Keys that vanished while in doubt -> revision of their end."""
        self._doubt_until = float("-inf")

    def doubt(self, now: float) -> None:
        """There was an outage until now."""
        self._doubt_until = now + self.ttl_s

    def value(self, entry: Entry) -> list[Entry]:
        """The key has this value."""
        self._suspects.pop(entry.key, None)
        if self._known.get(entry.key, 0) >= entry.revision:
            return []
        self._known[entry.key] = entry.revision
        return [entry]

    def deleted(self, key: str, revision: int) -> list[Entry]:
        """Somebody deleted the key: no doubt about that."""
        self._suspects.pop(key, None)
        return [] if self._known.pop(key, None) is None else [Entry(key=key, value=None, revision=revision)]

    def expired(self, key: str, revision: int, now: float) -> list[Entry]:
        """Nobody rewrote the key in time."""
        if now >= self._doubt_until:
            return self.deleted(key, revision)
        if key in self._known:
            self._suspects[key] = revision
        return []

    def compared(self, standing: set[str], now: float) -> list[Entry]:
        """These are all the keys there are; what else was known vanished without a mark."""
        gone = sorted(self._known.keys() - standing - self._suspects.keys())
        return [entry for key in gone for entry in self.expired(key, self._known[key], now)]

    def settle(self, now: float) -> list[Entry]:
        """The suspects that nobody rewrote, once the doubt is over."""
        if now < self._doubt_until:
            return []
        return [entry for key, revision in sorted(self._suspects.items()) for entry in self.deleted(key, revision)]

    def next_due(self) -> float:
        """When `settle` has something to say."""
        return self._doubt_until if self._suspects else float("inf")
