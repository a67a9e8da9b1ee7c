"""What differs between two configs of one run, and the words for it."""

from collections.abc import Sequence
from typing import Any

from configs.schema import RunConfig
from core.record.redact import redacted
from core.shown import shown

PLACES = ("run.folder", "model.path")
"""The same thing has several names, by where it is named from; `RunConfig.identity` knows whether the model is."""
MOST_TOLD, LONGEST = 5, 40

Change = tuple[str, str, str]
"""(dotted name, before, now)"""


def differences(mine: Any, theirs: Any, where: str = "") -> list[tuple[str, str, str]]:
    """(dotted name, mine, theirs) of everything that differs, in order of the names."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        found = []
        for key in sorted({*mine, *theirs}):
            found += differences(mine.get(key), theirs.get(key), f"{where}.{key}" if where else key)
        return found
    return [] if mine == theirs else [(where, shown(mine, 10_000), shown(theirs, 10_000))]


def other_settings(before: RunConfig, now: RunConfig) -> list[Change]:
    """What a run goes on with that it did not have before; no credentials."""
    found = differences(*(redacted(config.model_dump(mode="json")) for config in (before, now)))
    return [change for change in found if change[0] not in PLACES]


def told(changes: Sequence[Sequence[str]]) -> str:
    """As in `goes on with other settings: learner.lr 0.5 -> 0.1`; a handful of them."""
    named = [f"{name} {_short(before)} -> {_short(now)}" for name, before, now in changes[:MOST_TOLD]]
    more = f", and {len(changes) - MOST_TOLD} more" if len(changes) > MOST_TOLD else ""
    return f"goes on with other settings: {', '.join(named)}{more}"


def _short(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}..."
