"""What the learner's steps are made of again: where to start, each step's groups, and what the run had there.

    plan = plan_of(folder, first=9, last=12)
    for row, groups in batches(folder, plan.rows): ...

The chain's surviving steps say which groups trained, in which order; the archive of episodes has the groups. A replay
starts from the policy that the run started from, or from a checkpoint, and what stands between there and the first step
that was asked for is made on the way.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from core.checkpoints import store
from core.episodes.metrics import METRICS
from core.flow.collector import Group
from core.flow.ledger import Outcome
from core.record import reading
from core.record.files import RecordError
from core.record.reading import StepRow
from core.run_folder import RunFolder
from core.weights import filesystem

_OF_MACHINE = {metric.name for metric in METRICS if metric.unit in ("s", "tokens/s", "GiB") or metric.name == "mfu"}
"""Figures of how fast, not of what."""


class Start(NamedTuple):
    """Weights and optimizer of one step."""

    step: int
    checkpoint: Path | None
    """None: the policy that the run started from."""

    def __str__(self) -> str:
        return "the policy that the run started from" if self.checkpoint is None else f"checkpoint {self.step}"


class Plan(NamedTuple):
    start: Start
    first: int
    """The first step that was asked for; those before it are made on the way."""
    rows: list[StepRow]
    """Of every step from the one after `start` on."""
    told: list[str]
    """Checkpoints that were passed over, and why."""


def plan_of(run: Path, first: int | None, last: int | None) -> Plan:
    """How steps `first` to `last` can be made again; None: from the first that is possible, to the newest. Raises
    RecordError, which says from which step on it is possible where it is not from `first`."""
    rows = {row.step: row for row in reading.surviving_steps(reading.steps(run))}
    if not rows:
        raise RecordError(f"{run} has made no step yet: there is nothing to make again")
    newest = max(rows)
    last = newest if last is None else last
    if not (first or 1) <= last <= newest or (first is not None and first < 1):
        raise RecordError(f"steps {first or 1} to {last} of {run}: wanted some of 1 to {newest}, in order")
    lacking = _lacking(run, [rows[step] for step in sorted(rows) if step <= last])
    possible = [start for start in _starts(run, rows) if _whole(start, last, lacking)]
    possible, told = _undamaged(possible, first)
    if not possible:
        raise RecordError(_impossible(run, lacking, last))
    if first is None:
        start, first = possible[0], possible[0].step + 1
    else:
        before = [one for one in possible if one.step < first]
        if not before:
            earliest = possible[0].step + 1
            raise RecordError(
                f"{_impossible(run, lacking, first)}; possible from step {earliest} on: --from {earliest}"
            )
        start = before[-1]
    return Plan(start, first, [rows[step] for step in range(start.step + 1, last + 1)], told)


def _starts(run: Path, rows: Mapping[int, StepRow]) -> list[Start]:
    """Whatever weights are there, the oldest first. A checkpoint counts where its incarnation made the step that
    stands: another one's holds what a rollback took back."""
    found = [Start(0, None)]
    for path in store.committed(RunFolder(run).checkpoints):
        try:
            extra = store.read_extra(path)
        except (OSError, ValueError, msgspec.DecodeError):
            continue  # damaged: `verify` has better words, where it is wanted
        row = rows.get(extra.version)
        if row is not None and row.incarnation == extra.incarnation:
            found.append(Start(extra.version, path))
    return found


def _undamaged(starts: list[Start], first: int | None) -> tuple[list[Start], list[str]]:
    """Without those that would be chosen and are damaged: no others are read as a whole."""
    starts, told = list(starts), []
    while before := [one for one in starts if first is None or one.step < first]:
        chosen = before[0] if first is None else before[-1]
        if chosen.checkpoint is None:
            break
        try:
            store.verify(chosen.checkpoint)
            break
        except store.Damaged as error:
            told.append(f"{error}: passed over")
            starts.remove(chosen)
    return starts, told


def _lacking(run: Path, rows: Sequence[StepRow]) -> dict[int, tuple[int, int]]:
    """step -> (episodes of it that the archive does not have, episodes of it), where some are missing."""
    ended = {(one.group_id, one.index) for one in reading.ends(run) or ()}
    lacking = {}
    for row in rows:
        members = [(group.group_id, index) for group in row.groups for index in _members(group)]
        if missing := sum(member not in ended for member in members):
            lacking[row.step] = (missing, len(members))
    return lacking


def _members(group: Outcome) -> list[int]:
    return sorted([*group.trained, *(index for index, _ in group.rejected)])


def _whole(start: Start, last: int, lacking: Mapping[int, tuple[int, int]]) -> bool:
    return start.step < last and not any(start.step < step <= last for step in lacking)


def _impossible(run: Path, lacking: Mapping[int, tuple[int, int]], upto: int) -> str:
    """Why step `upto` can't be reached from what is there."""
    behind = [step for step in lacking if step <= upto]
    if not behind:
        return f"{run}: no weights of a step before {upto} are there"
    missing, of = lacking[behind[-1]]
    archive = "" if (run / "record" / "episodes.msgpack").exists() else " (record/episodes.msgpack is absent)"
    kept = [path.name for path in store.committed(RunFolder(run).checkpoints)]
    return (
        f"{run}: step {behind[-1]} can't be made again, the record lacks {missing} of its {of} episodes{archive}, and "
        f"behind it there is no checkpoint before step {upto} (there are: {', '.join(kept) or 'none'})"
    )


def batches(run: Path, rows: Sequence[StepRow]) -> Iterator[tuple[StepRow, list[Group]]]:
    """Each step with its groups as the learner had them, in the order of `rows`; episodes are in memory from when they
    are read until their step."""
    wanted = {group.group_id: (group, len(_members(group))) for row in rows for group in row.groups}
    found: dict[str, Group] = {}
    left = list(reversed(rows))
    for ended in reading.episodes(run):
        episode = ended.episode
        if episode.group_id not in wanted:
            continue
        outcome, _ = wanted[episode.group_id]
        group = found.setdefault(
            episode.group_id,
            Group(group_id=episode.group_id, admission=outcome.admission, size=ended.size, first_seq=0, episodes={}),
        )
        group.episodes.setdefault(episode.index, episode)
        while left and all(_here(found, *wanted[one.group_id]) for one in left[-1].groups):
            row = left.pop()
            yield row, [found.pop(one.group_id) for one in row.groups]
    if left:
        raise RecordError(f"{run}: the record lacks episodes of step {left[-1].step}")


def _here(found: Mapping[str, Group], outcome: Outcome, size: int) -> bool:
    group = found.get(outcome.group_id)
    return group is not None and len(group.episodes) >= size


def fingerprints(run: Path, published: Path) -> dict[tuple[int, int], str]:
    """(incarnation, version) -> fingerprint of the weights as the run published them: from its facts, and of what still
    stands in `published`, where its incarnations put them."""
    found: dict[tuple[int, int], str] = {}
    for folder in published.glob("i*"):
        if not folder.name[1:].isdecimal():
            continue
        for version in filesystem.versions(folder):
            try:
                manifest = filesystem.read_manifest(filesystem.version_folder(folder, version))
            except (OSError, filesystem.DamagedWeights):
                continue
            found[int(folder.name[1:]), version] = manifest.fingerprint
    for fact in reading.facts(run):
        if fact.kind == "weights_published" and "fingerprint" in fact.data:
            found[fact.data["incarnation"], fact.data["version"]] = fact.data["fingerprint"]
    return found


def other_figures(now: Mapping[str, float], was: Mapping[str, float | None]) -> dict[str, tuple[float, float | None]]:
    """name -> (now, was) of the figures that both have and that are not equal to the last bit; not those of time."""
    return {
        name: (value, was[name])
        for name, value in now.items()
        if name in was and name not in _OF_MACHINE and not _equal(value, was[name])
    }


def compared(now: Mapping[str, float], was: Mapping[str, float | None]) -> int:
    """How many figures `other_figures` looks at."""
    return sum(name in was and name not in _OF_MACHINE for name in now)


def _equal(now: float, was: float | None) -> bool:
    return not math.isfinite(now) if was is None else now == was
