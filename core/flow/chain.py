"""The surviving chain of steps: what the run has really trained on, whatever crashed in between.

The learner appends records to one log. A learner that takes over first appends an `incarnation` record that names the
step of the checkpoint it resumed from; every record of an earlier incarnation beyond that step is void from then on:
a rollback un-trains by itself. Feeding records in log order keeps the view current.

    incarnation 0, step 0      step 1      step 2      incarnation 1, step 1 (step 2 is void)      step 2'
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec


class GroupOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a record did with a group: every member is in exactly one of the two lists."""

    group_id: str
    admission: int
    trained: tuple[int, ...] = ()
    rejected: tuple[tuple[int, str], ...] = ()
    """(index, reason): tombstones, `stale`, `unscored`, ..."""
    rejected_tokens: tuple[int, ...] = ()
    """Of each of `rejected`, the tokens that were sampled for nothing. Empty in records of before they were counted."""


class ChainRecord(Protocol):
    """What the chain needs of a `bus.messages.Step`."""

    @property
    def kind(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def groups(self) -> tuple[GroupOutcome, ...]: ...


def survives(kind: str, step: int, resumed_from: int) -> bool:
    """Does a record of an earlier incarnation count when a later one resumed from the checkpoint of step
    `resumed_from`? A checkpoint is written right after its step, so rejections at that step came later and are void:
    the resumed learner finds the same groups again."""
    return step < resumed_from if kind == "rejected" else step <= resumed_from


class Chain:
    """The surviving records, in order."""

    def __init__(self, records: Iterable[ChainRecord] = ()) -> None:
        self.records: list[ChainRecord] = []
        self.incarnation = -1
        self.finished = False
        self._outcomes: dict[str, GroupOutcome] = {}
        self._admissions: dict[int, str] = {}
        for record in records:
            self.feed(record)

    def feed(self, record: ChainRecord) -> None:
        """Take the next record of the log. Raises ValueError for one that a fenced learner could not have written."""
        if record.kind == "incarnation":
            if record.incarnation <= self.incarnation:
                raise ValueError(f"incarnation {record.incarnation} after incarnation {self.incarnation}")
            self.incarnation = record.incarnation
            self.records = [r for r in self.records if survives(r.kind, r.step, record.step)]
            self.records.append(record)
            self.finished = False
            self._rebuild()
            return
        if record.incarnation != self.incarnation:
            raise ValueError(f"a record of incarnation {record.incarnation} in the chain of {self.incarnation}")
        self.records.append(record)
        self._take(record)
        self.finished = self.finished or record.kind == "finished"

    def _rebuild(self) -> None:
        self._outcomes.clear()
        self._admissions.clear()
        for record in self.records:
            self._take(record)

    def _take(self, record: ChainRecord) -> None:
        for outcome in record.groups:
            self._outcomes[outcome.group_id] = outcome
            self._admissions[outcome.admission] = outcome.group_id

    @property
    def step(self) -> int:
        """Optimizer updates behind the chain's end."""
        return self.records[-1].step if self.records else 0

    @property
    def version(self) -> int:
        return self.records[-1].version if self.records else 0

    def outcome(self, group_id: str) -> GroupOutcome | None:
        """What was done with a group, or None while it is open."""
        return self._outcomes.get(group_id)

    @property
    def consumed(self) -> int:
        """Groups that were trained on or rejected."""
        return len(self._outcomes)

    def rejected_groups(self) -> int:
        """Groups that were rejected whole."""
        return sum(not outcome.trained for outcome in self._outcomes.values())

    def rejected_in_a_row(self) -> tuple[int, str]:
        """(groups rejected whole since a group was last trained on, the latest reason)."""
        count, reason = 0, ""
        for record in reversed(self.records):
            for outcome in reversed(record.groups):
                if outcome.trained:
                    return count, reason
                count += 1
                reason = reason or outcome.rejected[0][1]
        return count, reason

    def trained_groups(self, up_to_version: int) -> int:
        """Groups trained by steps whose policy is `up_to_version` or older."""
        return sum(
            bool(outcome.trained) for record in self.records if record.version <= up_to_version
            for outcome in record.groups
        )  # fmt: skip
