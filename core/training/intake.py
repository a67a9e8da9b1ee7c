"""From complete groups to a batch that is packed, and an account of every episode in them.

    groups ─▶ too old? ─▶ samples ─▶ refused? ─▶ planned, packed
                 └───────────┴───────────┴──▶ outcome: each member trained, or rejected with its reason

A function of the groups and the version that trains: made while the step before runs, it is what would be made now. An
episode counts as trained when at least one sample of it is in the batch, so that the ledger never names one as trained
that the trainer left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.episodes.episode import Episode
from core.episodes.samples import Sample, samples_of
from core.flow.chain import GroupOutcome
from core.flow.collector import Group
from core.training.batch import Prepared


@dataclass(frozen=True)
class Intake:
    """What a step is made of."""

    groups: Sequence[Group]
    version: int
    """Of the policy that trains on it."""
    outcomes: tuple[GroupOutcome, ...]
    batch: Prepared | None
    """None: there is nothing to train on."""

    @property
    def trained(self) -> int:
        """Episodes."""
        return sum(len(outcome.trained) for outcome in self.outcomes)

    @property
    def left_out(self) -> set[str]:
        """Ids of the episodes that are rejected."""
        return {f"{outcome.group_id}/{index}" for outcome in self.outcomes for index, _ in outcome.rejected}


def take_in(
    groups: Sequence[Group],
    version: int,
    *,
    staleness_bound: int,
    credit: str,
    gamma: float,
    prepare: Callable[[list[Sample]], Prepared],
) -> Intake:
    """What a step of the policy of `version` makes of these groups. prepare: `core.training.ranks.RankGroup.prepare`.

    No member may be older than staleness_bound versions; admission and window see to that, so this is only a net.
    """
    reasons: dict[str, dict[int, str]] = {}
    samples: list[Sample] = []
    for group in groups:
        of_group = reasons[group.group_id] = {}
        for episode in group.trainable:
            found = samples_of(episode, credit=credit, gamma=gamma)
            if reason := _left_out(episode, found, version - staleness_bound):
                of_group[episode.index] = reason
            else:
                samples += found
    batch = prepare(samples) if samples else None
    if batch is not None:
        kept = {(samples[i].group_id, samples[i].index) for i in batch.batch.kept}
        for sample, reason in zip(samples, batch.batch.reasons, strict=True):
            if reason and (sample.group_id, sample.index) not in kept:
                reasons[sample.group_id].setdefault(sample.index, reason)
    return Intake(
        groups=groups,
        version=version,
        outcomes=tuple(group.outcome(reasons[group.group_id]) for group in groups),
        batch=batch if batch is not None and batch.batch.kept else None,
    )


def _left_out(episode: Episode, samples: Sequence[Sample], oldest_allowed: int) -> str | None:
    """Why nothing of a scored episode goes to the trainer, or None."""
    oldest = episode.oldest_version
    if oldest is not None and oldest < oldest_allowed:
        return "stale"
    # Samples have the episode's role, not a turn's.
    if len({turn.index for turn in episode.turns}) < len(episode.turns):
        return "turn_twice"
    if samples:
        return None
    return "unscored" if any(turn.completion_ids for turn in episode.turns) else "empty_completion"
