"""Admission: how many groups may be under way, so that nothing that is trained on is too old.

A credit is charged when a group is admitted. It comes back when the group was trained on and the generators hold the
policy that came out of it (a credit released earlier would admit groups that are born stale), or at once when the
group was rejected. There are (max_staleness + 1) x groups_per_step credits. The second half of the bound is the
learner's window (`core.flow.collector`).
"""

from core.flow.chain import Chain


def admissible(
    *, admitted: int, chain: Chain, held_version: int, max_staleness: int, groups_per_step: int, total_steps: int
) -> int:
    """How many more groups may be admitted now (≥ 0).

    `admitted` counts admissions so far, `held_version` is the oldest policy that a live generator still samples with.
    Never admits more than the remaining steps can use, so that a finished run leaves nothing pending.
    """
    if chain.finished:
        return 0
    returned = chain.rejected_groups() + chain.trained_groups(held_version)
    free = (max_staleness + 1) * groups_per_step - (admitted - returned)
    open_groups = admitted - chain.consumed
    needed = (total_steps - chain.step) * groups_per_step - open_groups
    return max(0, min(free, needed))
