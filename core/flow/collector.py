"""The learner's collector: episodes in, complete groups out, each at most once, none too far ahead of the oldest.

Window rule: a group may be taken when it is among the next `groups_per_step` open ones, or less than
window - groups_per_step admissions beyond the oldest one that is not complete (rejected ones in between not counted);
complete groups go oldest first. With window = groups_per_step (the default) that is first in, first out, and together
with the credits of `core.flow.admission` staleness is at most max_staleness. A larger window lets later groups
overtake a straggler, for at most max_staleness + (window - 1) // groups_per_step.

(One window counted from the oldest open group would stand still: with window 3 and two groups a step, groups 1 and 2
overtake group 0, which then waits in its window alone, for ever.)

The collector's `state` goes into every checkpoint: consumed group ids roll back together with the weights.
"""

from collections.abc import Sequence

import msgspec

from core.episodes.episode import TOMBSTONES, Episode
from core.flow.chain import GroupOutcome


class Group(msgspec.Struct, kw_only=True):
    """Episodes of one group as they come in; complete when `size` distinct ones are here."""

    group_id: str
    admission: int
    size: int
    first_seq: int
    """Position of its first message in the log."""
    episodes: dict[int, Episode] = {}

    @property
    def complete(self) -> bool:
        return len(self.episodes) == self.size

    @property
    def trainable(self) -> list[Episode]:
        return [self.episodes[i] for i in sorted(self.episodes) if self.episodes[i].trainable]

    def outcome(self, reasons: dict[int, str] | None = None) -> GroupOutcome:
        """Every member trained or rejected: tombstones by their own reason, others by `reasons` when named there."""
        reasons = reasons or {}
        rejected = {}
        for i, episode in self.episodes.items():
            if episode.end in TOMBSTONES:
                rejected[i] = episode.end
            elif i in reasons:
                rejected[i] = reasons[i]
            elif not episode.trainable:
                rejected[i] = "unscored"
        return GroupOutcome(
            group_id=self.group_id,
            admission=self.admission,
            trained=tuple(i for i in sorted(self.episodes) if i not in rejected),
            rejected=tuple(sorted(rejected.items())),
            rejected_tokens=tuple(self.episodes[i].completion_tokens for i in sorted(rejected)),
        )


class CollectorState(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint keeps: see `Collector`."""

    position: int = 1
    """First log sequence that is still needed."""
    consumed: bytes = b""
    """All consumed group ids of the run, 16 bytes each."""
    oldest_open: int = 0
    """a₀: the smallest admission number that is neither trained nor rejected."""
    ahead: tuple[int, ...] = ()
    """Admissions above a₀ that were consumed."""
    ahead_rejected: tuple[int, ...] = ()
    """Those of `ahead` that were rejected whole."""


class Collector:
    """Collects by group id, counts by admission number. Feed it every message of the log from `position` on."""

    def __init__(self, *, groups_per_step: int, window: int = 0, state: CollectorState | None = None) -> None:
        """`window` 0 means groups_per_step."""
        state = state or CollectorState()
        self._groups_per_step = groups_per_step
        self._overtaking = max(0, (window or groups_per_step) - groups_per_step)
        self.next_seq = state.position
        self._consumed = {state.consumed[i : i + 16] for i in range(0, len(state.consumed), 16)}
        self._oldest = state.oldest_open
        self._ahead = set(state.ahead)
        self._ahead_rejected = set(state.ahead_rejected)
        self._open: dict[str, Group] = {}
        self.duplicates = 0
        """Messages that were seen before or belong to a consumed group."""

    def add(self, seq: int, episode: Episode, *, admission: int, size: int) -> None:
        """Take the message at log position `seq`."""
        self.next_seq = max(self.next_seq, seq + 1)
        if bytes.fromhex(episode.group_id) in self._consumed:
            self.duplicates += 1
            return
        group = self._open.get(episode.group_id)
        if group is None:
            group = Group(group_id=episode.group_id, admission=admission, size=size, first_seq=seq, episodes={})
            self._open[episode.group_id] = group
        if episode.index in group.episodes:
            self.duplicates += 1
            return
        group.episodes[episode.index] = episode

    def is_consumed(self, group_id: str) -> bool:
        return bytes.fromhex(group_id) in self._consumed

    def rejects(self) -> list[Group]:
        """Complete groups without anything to train on; to be recorded and consumed at once."""
        return [g for g in self._by_admission() if g.complete and not g.trainable]

    def complete(self) -> list[Group]:
        """Complete groups with something to train on, oldest first, whether or not their turn has come."""
        return [g for g in self._by_admission() if g.complete and g.trainable]

    def ready(self) -> list[Group]:
        """The groups of the next step, oldest first; empty while there are fewer than groups_per_step."""
        straggler = self._oldest_incomplete()
        found = [
            g
            for g in self._by_admission()
            if g.complete
            and g.trainable
            and (
                self._between(self._oldest, g.admission) < self._groups_per_step
                or self._between(straggler, g.admission) <= self._overtaking
            )
        ]
        return found[: self._groups_per_step] if len(found) >= self._groups_per_step else []

    def consume(self, outcomes: list[GroupOutcome]) -> None:
        """These groups are done with, together with the step that records them."""
        for outcome in outcomes:
            self._open.pop(outcome.group_id, None)
            self._consumed.add(bytes.fromhex(outcome.group_id))
            self._ahead.add(outcome.admission)
            if not outcome.trained:
                self._ahead_rejected.add(outcome.admission)
        while self._oldest in self._ahead:
            self._ahead.discard(self._oldest)
            self._ahead_rejected.discard(self._oldest)
            self._oldest += 1

    def after(self, outcomes: Sequence[GroupOutcome]) -> "Collector":
        """What this collector will be when `outcomes` are consumed and nothing else has come; for asking `ready`, not
        for feeding, since it does not know which groups were consumed."""
        then = Collector(groups_per_step=self._groups_per_step)
        then._overtaking, then._oldest, then._open = self._overtaking, self._oldest, dict(self._open)
        then._ahead, then._ahead_rejected = set(self._ahead), set(self._ahead_rejected)
        then.consume(list(outcomes))
        return then

    def state(self) -> CollectorState:
        """For the checkpoint; `position` is where a resumed learner must read on."""
        firsts = [group.first_seq for group in self._open.values()]
        return CollectorState(
            position=min(firsts, default=self.next_seq),
            consumed=b"".join(sorted(self._consumed)),
            oldest_open=self._oldest,
            ahead=tuple(sorted(self._ahead)),
            ahead_rejected=tuple(sorted(self._ahead_rejected)),
        )

    @property
    def waiting_episodes(self) -> int:
        """Episodes of groups that are not consumed."""
        return sum(len(group.episodes) for group in self._open.values())

    @property
    def oldest_open(self) -> int:
        return self._oldest

    def _by_admission(self) -> list[Group]:
        return sorted(self._open.values(), key=lambda group: group.admission)

    def _oldest_incomplete(self) -> int:
        """The smallest admission number that is neither consumed nor completely here."""
        complete = {group.admission for group in self._open.values() if group.complete}
        admission = self._oldest
        while admission in complete or admission in self._ahead:
            admission += 1
        return admission

    def _between(self, first: int, admission: int) -> int:
        """How many admissions `admission` is behind `first`, rejected ones not counted; negative when before it."""
        return admission - first - sum(first < a < admission for a in self._ahead_rejected)
