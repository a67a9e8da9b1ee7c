"""Rates from totals that counters report: how many a second, over time in which somebody counted.

Two readings of one process, one soon after the other, make a span: between them it lived, and made the difference.
Between the readings of two processes, or two that are long apart, nobody knows who lived: a run was killed and taken up
again, minutes or days later, a machine slept, a clock was set. Such time is in no span, and so in no rate.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

RATE_WINDOW_S = 30.0
"""Rates are means over this long."""
LEAST_S = 1.0
"""Over less time there is no rate: two beats may follow each other at once."""


class Span(NamedTuple):
    """`gain` events, evenly between `begin` and `end` (seconds since the epoch)."""

    begin: float
    end: float
    gain: float

    def within(self, begin: float, end: float) -> "Span | None":
        """The part of it between two times."""
        low, high = max(begin, self.begin), min(end, self.end)
        return Span(low, high, self.gain * (high - low) / (self.end - self.begin)) if high > low else None


class Reading(NamedTuple):
    """What one actor's counter said."""

    total: float
    at: float
    process: Hashable = None
    """Whose total it is, where that is known: another process counts from 0 again."""

    def span_to(self, later: "Reading", silent_s: float) -> Span | None:
        """The span that ends with the actor's next reading; None where the time between is not known to be lived."""
        known = self.process is not None and later.process is not None
        if later.total < self.total or (known and later.process != self.process):
            return None
        if not later.total:  # it has not begun: the model is loaded, nobody has asked for anything
            return None
        if not 0 < later.at - self.at <= silent_s:
            return None
        return Span(self.at, later.at, later.total - self.total)


def closed_up(spans: Iterable[Span]) -> list[Span]:
    """The same spans in order without the time that none of them covers: each begins so much earlier as nobody lived
    before it."""
    moved: list[Span] = []
    gone, until = 0.0, None
    for begin, end, gain in sorted(spans):
        if until is not None and begin > until:
            gone += begin - until
        until = end if until is None else max(until, end)
        moved.append(Span(begin - gone, end - gone, gain))
    return moved


def lived_s(spans: Iterable[Span]) -> float:
    """Seconds that the spans cover: those of several actors beside each other are the same time, lived once."""
    moved = closed_up(spans)
    return max(span.end for span in moved) - moved[0].begin if moved else 0.0


@dataclass
class Rate:
    """The rate over the last RATE_WINDOW_S, fed with one reading after the other."""

    readings: dict[str, Reading] = field(default_factory=dict)
    spans: deque[Span] = field(default_factory=deque)
    newest: float | None = None

    def see(self, actor: str, total: float, at: float, silent_s: float, process: Hashable = None) -> None:
        """`total` of one actor at `at`. Readings that are further apart than `silent_s` are not connected."""
        before, reading = self.readings.get(actor), Reading(total, at, process)
        self.readings[actor], self.newest = reading, at
        if before is None:
            return
        if at < before.at:  # the clock was set back: what was measured by the old one would come again
            self.spans.clear()
        if (span := before.span_to(reading, silent_s)) is not None:
            self.spans.append(span)
        while self.spans and self.spans[0].end <= at - RATE_WINDOW_S:
            self.spans.popleft()

    def per_s(self, now: float, silent_s: float) -> float | None:
        """None while there is nothing to divide: nobody has counted for long enough, or nobody does any more."""
        if self.newest is None or now - self.newest > silent_s:
            return None
        since = self.newest - RATE_WINDOW_S
        parts = [part for span in self.spans if (part := span.within(since, span.end)) is not None]
        lived = lived_s(parts)
        return sum(part.gain for part in parts) / lived if lived >= LEAST_S else None
