"""The ledger: submitted = trained + rejected(reason) + pending, for groups and for episodes.

Three plain inputs, each as its source tells it, and nothing that anybody counted on the way:

    admissions  which groups were submitted, and how many episodes each has
    chain       the STEPS records in stream order; they alone say what was trained
    ended       the episodes that stand in the log or the archive, tombstones included (optional)

Only the surviving chain counts: an incarnation that resumed from step s voids every earlier record after s, so a
rollback un-trains by itself. The two sides of the equation are counted from different inputs, so a group that was
trained twice, or trained but never submitted, can't hide: it is named in `problems`, and the account does not balance.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from core.episodes.episode import TOMBSTONES
from core.flow.chain import survives

Member = tuple[str, int]
"""An episode: (group id, index)."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was submitted; the data of an `admitted` fact. Saying the same twice is harmless."""

    group_id: str
    admission: int
    size: int
    task_id: str = ""
    level: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did with a group."""

    group_id: str
    admission: int = -1
    trained: tuple[int, ...] = ()
    rejected: tuple[tuple[int, str], ...] = ()
    """(index, reason)"""
    rejected_tokens: tuple[int, ...] = ()
    """Sampled tokens of each of `rejected`; empty in records of before they were counted."""


class ChainRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the STEPS chain: `incarnation` (a learner took over after `step`), `step`, `rejected` or
    `finished`."""

    kind: str
    incarnation: int
    step: int
    groups: tuple[Outcome, ...] = ()


class EndedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that ended."""

    group_id: str
    index: int
    end: str
    """How it ended; one of `core.episodes.episode.TOMBSTONES` means that there is nothing to train on."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One side-by-side count. `submitted` comes from admissions, `trained` and `rejected` from the chain."""

    submitted: int
    trained: int
    rejected: dict[str, int]
    """Reason -> how many."""
    pending: int
    rejected_tokens: dict[str, int] = {}
    """Of episodes: reason -> tokens that were sampled for nothing, where the record counts them."""

    @property
    def rejected_total(self) -> int:
        return sum(self.rejected.values())

    @property
    def holds(self) -> bool:
        return self.submitted == self.trained + self.rejected_total + self.pending

    def line(self) -> str:
        """`768 submitted = 752 trained + 14 rejected (10 infra, 4 stale of 5,120 tokens) + 2 pending`"""
        reasons = self.reasons()
        sign = "=" if self.holds else "≠"
        return (
            f"{self.submitted} submitted {sign} {self.trained} trained + {self.rejected_total} rejected"
            f"{f' ({reasons})' if reasons else ''} + {self.pending} pending"
        )

    def reasons(self) -> str:
        """Why, how many, and what was sampled for them: `10 infra, 4 stale of 5,120 tokens`."""
        told = []
        for reason, count in self.rejected.items():
            tokens = self.rejected_tokens.get(reason, 0)
            told.append(f"{count} {reason}{f' of {tokens:,} tokens' if tokens else ''}")
        return ", ".join(told)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The account at one moment."""

    groups: Account
    """A group counts as trained when at least one of its episodes is; a rejected one has its episodes' common reason,
    or `mixed`."""
    episodes: Account
    waiting: int
    """Of the pending episodes, those that ended and wait for the learner; the others are being played or not begun."""
    tombstones: dict[str, int]
    """Reason -> how many episodes ended as one."""
    step: int
    """Last surviving step."""
    incarnations: int
    voided_steps: int
    """Steps that a rollback took back."""
    finished: bool
    """The last word of the chain is that it has ended, and the run wants no more steps than it has."""
    steps: int
    """How many steps the run is to make; 0 where that is not known."""
    problems: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        return not self.problems and self.groups.holds and self.episodes.holds

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, with `balanced`."""
        return {"balanced": self.balanced, **msgspec.to_builtins(self)}


def surviving(chain: Iterable[ChainRecord]) -> tuple[list[ChainRecord], list[str]]:
    """The step and rejection records that count, in order, and what is wrong with the chain's own shape."""
    kept: list[ChainRecord] = []
    problems: list[str] = []
    incarnation, last = -1, 0
    for record in chain:
        if record.kind == "incarnation":
            if record.incarnation <= incarnation:
                problems.append(f"incarnation {record.incarnation} took over after incarnation {incarnation}")
            if record.step > last:
                problems.append(
                    f"incarnation {record.incarnation} resumed from step {record.step}, but the chain ends at {last}"
                )
            incarnation, last = record.incarnation, record.step
            kept = [old for old in kept if survives(old.kind, old.step, record.step)]
        elif record.kind in ("step", "rejected", "finished"):
            if record.incarnation != incarnation:
                problems.append(
                    f"{record.kind} {record.step} is of incarnation {record.incarnation}, but incarnation "
                    f"{incarnation} had taken over: it does not count"
                )
                continue
            if record.kind == "finished":
                continue
            if record.kind == "rejected":
                kept.append(record)
                continue
            if record.step != last + 1:
                problems.append(f"step {record.step} follows step {last}")
            last = record.step
            kept.append(record)
        else:
            problems.append(
                f"unknown record kind {record.kind!r} in the chain; known: incarnation, step, rejected, finished"
            )
    return kept, problems


def settle(
    admissions: Iterable[Admission],
    chain: Iterable[ChainRecord],
    ended: Iterable[EndedEpisode] | None = None,
    steps_wanted: int = 0,
) -> Ledger:
    """The account.

    Args:
        ended: None means that no episode archive is at hand: what needs it is not checked.
        steps_wanted: what the run is to make by its config, which may have been raised since its chain finished.
    """
    records = list(chain)
    steps, problems = surviving(records)
    admitted = _admitted(admissions, problems)
    trained, rejected, outcomes = _outcomes(steps, admitted, problems)
    tokens = _tokens(steps)
    ends = None if ended is None else _ends(ended, admitted, problems)
    if ends is not None:
        for member in sorted(trained):
            if member not in ends:
                problems.append(f"episode {_name(member)} was trained, but never ended")
            elif ends[member] in TOMBSTONES:
                problems.append(f"episode {_name(member)} was trained, but is a tombstone ({ends[member]})")

    members = {(group.group_id, index) for group in admitted.values() for index in range(group.size)}
    open_members = members - trained - rejected.keys()
    group_reasons = Counter(reason for reason in outcomes.values() if reason)
    return Ledger(
        groups=Account(
            submitted=len(admitted),
            trained=sum(not reason for reason in outcomes.values()),
            rejected=_ordered(group_reasons),
            pending=len(admitted.keys() - outcomes.keys()),
        ),
        episodes=Account(
            submitted=sum(group.size for group in admitted.values()),
            trained=len(trained),
            rejected=_ordered(Counter(rejected.values())),
            pending=len(open_members),
            rejected_tokens=_ordered(tokens),
        ),
        waiting=len(open_members & ends.keys()) if ends is not None else 0,
        tombstones=_ordered(Counter(end for end in (ends or {}).values() if end in TOMBSTONES)),
        step=steps[-1].step if steps else 0,
        incarnations=sum(record.kind == "incarnation" for record in records),
        voided_steps=sum(record.kind == "step" for record in records) - sum(kept.kind == "step" for kept in steps),
        finished=bool(records) and records[-1].kind == "finished" and records[-1].step >= steps_wanted,
        steps=steps_wanted,
        problems=tuple(problems),
    )


def _admitted(admissions: Iterable[Admission], problems: list[str]) -> dict[str, Admission]:
    """By group id; the first word stands when two differ."""
    admitted: dict[str, Admission] = {}
    numbers: dict[int, str] = {}
    for group in admissions:
        known = admitted.setdefault(group.group_id, group)
        if (known.admission, known.size) != (group.admission, group.size):
            problems.append(
                f"group {group.group_id} was admitted as number {known.admission} with {known.size} episodes and again "
                f"as number {group.admission} with {group.size}"
            )
        owner = numbers.setdefault(known.admission, known.group_id)
        if owner != known.group_id:
            problems.append(f"groups {owner} and {known.group_id} share the admission number {known.admission}")
    return admitted


def _outcomes(
    steps: Sequence[ChainRecord], admitted: dict[str, Admission], problems: list[str]
) -> tuple[set[Member], dict[Member, str], dict[str, str]]:
    """Trained episodes, rejected episodes with their reasons, and per group its reason ("" when it was trained)."""
    trained: dict[Member, int] = {}
    rejected: dict[Member, str] = {}
    outcomes: dict[str, str] = {}
    consumed_at: dict[str, int] = {}
    for record in steps:
        for group in record.groups:
            gid = group.group_id
            if gid in consumed_at:
                problems.append(f"group {gid} was consumed at step {consumed_at[gid]} and again at step {record.step}")
            consumed_at[gid] = record.step
            for index in group.trained:
                if (gid, index) in trained:
                    problems.append(
                        f"episode {gid}/{index} was trained twice: step {trained[gid, index]} and step {record.step}"
                    )
                trained[gid, index] = record.step
            for index, reason in group.rejected:
                if (gid, index) in rejected:
                    problems.append(f"episode {gid}/{index} was rejected twice, at last at step {record.step}")
                rejected[gid, index] = reason
            for index in sorted(set(group.trained) & {index for index, _ in group.rejected}):
                problems.append(f"episode {gid}/{index} is in both lists of step {record.step}: trained and rejected")
            reasons = sorted({reason for _, reason in group.rejected})
            outcomes[gid] = "" if group.trained else reasons[0] if len(reasons) == 1 else "mixed"
            _against_admission(group, record.step, admitted.get(gid), problems)
    return set(trained), rejected, outcomes


def _tokens(steps: Sequence[ChainRecord]) -> Counter[str]:
    """Sampled tokens of rejected episodes, by reason."""
    tokens: Counter[str] = Counter()
    for record in steps:
        for group in record.groups:
            for (_, reason), count in zip(group.rejected, group.rejected_tokens, strict=False):
                tokens[reason] += count
    return tokens


def _against_admission(group: Outcome, step: int, admission: Admission | None, problems: list[str]) -> None:
    gid = group.group_id
    if admission is None:
        problems.append(f"group {gid} was consumed at step {step} without admission")
        return
    if group.admission not in (-1, admission.admission):
        problems.append(
            f"group {gid} was admitted as number {admission.admission}, but step {step} calls it {group.admission}"
        )
    seen = {*group.trained, *(index for index, _ in group.rejected)}
    outside = sorted(index for index in seen if not 0 <= index < admission.size)
    if outside:
        problems.append(
            f"group {gid} has {admission.size} episodes, but step {step} consumed number {', '.join(map(str, outside))}"
        )
    missing = sorted(set(range(admission.size)) - seen)
    if missing:
        problems.append(
            f"step {step} consumed group {gid} without saying what became of episode {', '.join(map(str, missing))}"
        )


def _ends(ended: Iterable[EndedEpisode], admitted: dict[str, Admission], problems: list[str]) -> dict[Member, str]:
    """How each episode ended. The same episode may stand twice (played again after a trim): the first one counts."""
    ends: dict[Member, str] = {}
    for episode in ended:
        group = admitted.get(episode.group_id)
        if group is None:
            problems.append(f"episode {episode.group_id}/{episode.index} ended without admission")
        elif not 0 <= episode.index < group.size:
            problems.append(
                f"episode {episode.group_id}/{episode.index} ended, but its group has {group.size} episodes"
            )
        ends.setdefault((episode.group_id, episode.index), episode.end)
    return ends


def _name(member: Member) -> str:
    return f"{member[0]}/{member[1]}"


def _ordered(counts: Counter[str]) -> dict[str, int]:
    """Most frequent first, then by name, so that equal ledgers print equally."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
