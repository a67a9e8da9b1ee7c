"""From returns to one number per sample: shaping, who is compared with whom, and groups that teach nothing.

Every rank computes this from all samples of the step, so that nothing depends on who trains what.

    members       samples without an exclusion: a finite return, not cut off at the token limit, ...
    shaped        the return, less the overlong penalty of the longest turn in the sample
    compared      within (group, turn, role), or with advantage = "group" within (group, role). Where credit is
                  "trajectory", within (group, role) in any case, and a rollout counts once however many samples hold
                  it: its parts all have its return, and would else be each other's baseline. What one part has, a
                  penalty or a cut, all have.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import torch

from core.algorithms.advantages import advantages, index_by_key
from core.algorithms.rewards import dynamic_sampling, overlong_penalty
from core.episodes.samples import Sample
from core.training.combinations import PER_TOKEN
from core.training.settings import TrainerSettings


def refuse_twins(samples: Sequence[Sample]) -> None:
    """Raises ValueError when the same turn of the same episode is in the batch twice."""
    keys = Counter((s.group_id, s.index, s.turn, s.role) for s in samples)
    twice = [key for key, n in keys.items() if n > 1]
    if twice:
        group, index, turn, role = twice[0]
        raise ValueError(f"episode {group}/{index} turn {turn} ({role}) is in the batch twice")


def exclusions(samples: Sequence[Sample], settings: TrainerSettings) -> list[str | None]:
    """Why a sample stands in nobody's baseline, or None; [samples]: a return that is not a number, a turn that was cut
    off (with `overlong_filter`), a return below 0 where the baseline divides by the group's mean."""
    cut = {unit(s, settings) for s in samples if s.truncated} if settings.overlong_filter else set()
    ratio = settings.baseline == "maxrl"

    def reason(s: Sample) -> str | None:
        if not np.isfinite(s.ret):
            return "non_finite"
        if unit(s, settings) in cut:
            return "truncated"
        return "negative_return" if ratio and s.ret < 0 else None

    return [reason(s) for s in samples]


def members(samples: Sequence[Sample], settings: TrainerSettings) -> list[bool]:
    """Which samples stand in baselines; [samples]."""
    return [reason is None for reason in exclusions(samples, settings)]


def longest_turn(mask: np.ndarray) -> int:
    """Most trained tokens in a row. mask: [tokens]."""
    edges = np.flatnonzero(np.diff(np.r_[0, (np.asarray(mask) > 0).astype(np.int8), 0]))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def shaped_returns(samples: Sequence[Sample], settings: TrainerSettings) -> list[float]:
    """Returns with the overlong penalty (docs/algorithms.md) in them; [samples]."""
    returns = [float(s.ret) for s in samples]
    if not settings.overlong_buffer_tokens:
        return returns
    penalty = overlong_penalty(
        torch.tensor([longest_turn(s.mask) for s in samples], dtype=torch.int64),
        max_tokens=settings.constant_tokens,
        buffer_tokens=settings.overlong_buffer_tokens,
        factor=settings.overlong_factor,
    )
    worst: dict[Hashable, float] = {}
    for s, value in zip(samples, penalty.tolist(), strict=True):
        worst[unit(s, settings)] = min(value, worst.get(unit(s, settings), 0.0))
    return [r + worst[unit(s, settings)] for s, r in zip(samples, returns, strict=True)]


def compared(sample: Sample, settings: TrainerSettings) -> tuple[Hashable, ...]:
    """Samples of the same answer are compared with each other."""
    if settings.advantage == "group" or settings.credit == "trajectory":
        return (sample.group_id, sample.role)
    return (sample.group_id, sample.turn, sample.role)


def rollout(sample: Sample) -> tuple[Hashable, ...]:
    """Samples of the same answer are parts of one episode."""
    return (sample.group_id, sample.index, sample.role)


def unit(sample: Sample, settings: TrainerSettings) -> tuple[Hashable, ...]:
    """What has a return of its own: a turn, or with trajectory credit a rollout."""
    return rollout(sample) if settings.credit == "trajectory" else (*rollout(sample), sample.turn)


def _units(samples: Sequence[Sample], settings: TrainerSettings) -> dict[Hashable, int]:
    """{unit: its first member's place in samples}, in order of appearance."""
    out: dict[Hashable, int] = {}
    for i, member in enumerate(members(samples, settings)):
        if member:
            out.setdefault(unit(samples[i], settings), i)
    return out


def sample_advantages(
    samples: Sequence[Sample], settings: TrainerSettings, returns: Sequence[float] | None = None
) -> list[float]:
    """The advantage of every sample; 0 for those that are no members. With a token-level advantage: returns less the
    baseline, to be spread over tokens. returns: [samples], equal within a unit; None: the shaped ones."""
    returns = shaped_returns(samples, settings) if returns is None else returns
    units = _units(samples, settings)
    values = advantages(
        torch.tensor([returns[i] for i in units.values()], dtype=torch.float64),
        index_by_key([compared(samples[i], settings) for i in units.values()]),
        baseline=settings.baseline,
        scale="none" if settings.advantage in PER_TOKEN else settings.scale,
    ).tolist()
    by_unit = dict(zip(units, values, strict=True))
    found = zip(samples, members(samples, settings), strict=True)
    return [by_unit[unit(s, settings)] if member else 0.0 for s, member in found]


def uniform_groups(samples: Sequence[Sample], settings: TrainerSettings) -> dict[str, str]:
    """{group id: reason} of the groups that teach nothing, since all their advantages are 0 or rounding: for
    `dynamic_sampling`. The reason (`core.algorithms.rewards.REASONS`) is that of the first comparison in the group."""
    returns, firsts = shaped_returns(samples, settings), list(_units(samples, settings).values())
    keys = index_by_key([compared(samples[i], settings) for i in firsts])
    count = int(keys.max()) + 1 if firsts else 0
    _, reasons = dynamic_sampling(torch.tensor([returns[i] for i in firsts], dtype=torch.float64), keys, count)
    found: dict[str, dict[int, str | None]] = {s.group_id: {} for s in samples}
    for i, key in zip(firsts, keys.tolist(), strict=True):
        found[samples[i].group_id][key] = reasons[key]
    return {
        group: next((reason for reason in of_group.values() if reason), "no_member")
        for group, of_group in found.items()
        if all(of_group.values())
    }
