"""Dynamic sampling on whole groups: those that teach nothing are rejected as soon as they are complete, so that their
credits return and the sampler admits others in their place (DAPO, arXiv 2503.14476).

A step then always has groups_per_step groups with differing returns. `sampler.give_up_after_rejected` rejections in a
row end the run: a policy that never, or always, solves its tasks would else sample for ever.
"""

from collections.abc import Sequence

from core.episodes.samples import samples_of
from core.flow.chain import GroupOutcome
from core.flow.collector import Group
from core.training.credit import uniform_groups
from core.training.settings import TrainerSettings


class DynamicSampling:
    """Looks at each complete group once; does nothing where the settings don't ask for it."""

    def __init__(self, settings: TrainerSettings, gamma: float) -> None:
        """gamma: discount from turn to turn, of the samples' returns."""
        self._settings, self._gamma = settings, gamma
        self._kept: set[str] = set()

    def rejects(self, complete: Sequence[Group]) -> list[GroupOutcome]:
        """Outcomes of the groups that are to be rejected. complete: all complete groups with something to train on."""
        if not self._settings.dynamic_sampling:
            return []
        outcomes, kept = [], set()
        for group in complete:
            reason = None if group.group_id in self._kept else self._reason(group)
            if reason is None:
                kept.add(group.group_id)
            else:
                outcomes.append(group.outcome(dict.fromkeys(group.episodes, reason)))
        self._kept = kept
        return outcomes

    def _reason(self, group: Group) -> str | None:
        credit = self._settings.credit
        samples = [s for e in group.trainable for s in samples_of(e, credit=credit, gamma=self._gamma)]
        return uniform_groups(samples, self._settings).get(group.group_id)
