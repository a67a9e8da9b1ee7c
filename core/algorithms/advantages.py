"""Advantages: how much better a sample did than the others it is compared with.

Samples are compared within their key (group, turn, role) and are found by id, never by position: groups are uneven when
members were masked out (infra trouble), and a baseline over rows would then mix episodes of different tasks.

    mean            A_i = R_i - mean_j R_j                           group mean (Dr.GRPO, arXiv 2503.20783)
    leave_one_out   A_i = R_i - mean_{j≠i} R_j = n/(n-1)·(R_i - mean)   RLOO (arXiv 2402.14740); with return-to-go per
                    turn index it is the TRLOO baseline of Dr.Kernel
    none            A_i = R_i                                        REINFORCE

A key with one member has nothing to be compared with: advantage 0. Members whose returns are all exactly equal have
advantage exactly 0, decided by equality and not by a small standard deviation: rounding noise in a mean of equal
numbers, divided by its own tiny deviation, would make a large advantage out of nothing.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

BASELINES = ("leave_one_out", "mean", "none")
_EPS = 1e-6


def index_by_key(keys: Sequence[Hashable]) -> Tensor:
    """Dense numbers int64 [samples] for `keys`: equal keys get equal numbers, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys], dtype=torch.int64)


def advantages(
    returns: Tensor, group: Tensor, *, baseline: str = "leave_one_out", std_normalisation: bool = False
) -> Tensor:
    """Advantage of every sample against the other members of its group.

    returns: floating [samples], finite.
    group: int64 [samples], numbers 0..G-1 (`index_by_key` of (group id, turn, role)).
    baseline: one of BASELINES.
    std_normalisation: divide by the group's sample standard deviation (n-1 in the denominator; GRPO, arXiv 2402.03300);
        groups whose returns are all equal stay at 0.

    Returns float32 [samples]; the sums run in float64. Raises ValueError on a wrong shape, name or non-finite return.
    """
    if returns.ndim != 1 or returns.shape != group.shape:
        raise ValueError(f"returns and group are both [samples], got {tuple(returns.shape)} and {tuple(group.shape)}")
    if baseline not in BASELINES:
        raise ValueError(f"unknown baseline {baseline!r}; known: {', '.join(BASELINES)}")
    if returns.numel() == 0:
        return torch.zeros(0, dtype=torch.float32, device=returns.device)
    r = returns.to(torch.float64)
    if not torch.isfinite(r).all():
        raise ValueError("non-finite return: leave such samples out before advantages are computed")

    groups = int(group.max()) + 1
    count = torch.zeros(groups, dtype=torch.float64, device=r.device).index_add_(0, group, torch.ones_like(r))
    mean = torch.zeros(groups, dtype=torch.float64, device=r.device).index_add_(0, group, r) / count.clamp(min=1)
    high = torch.full_like(mean, -torch.inf).scatter_reduce_(0, group, r, "amax")
    low = torch.full_like(mean, torch.inf).scatter_reduce_(0, group, r, "amin")
    n, all_equal = count[group], (high == low)[group]

    centred = r - mean[group]
    if baseline == "none":
        out = r.clone()
    else:
        out = centred * n / (n - 1).clamp(min=1) if baseline == "leave_one_out" else centred.clone()
        out[all_equal] = 0.0  # singletons are all equal to themselves
    if std_normalisation:
        square = torch.zeros_like(mean).index_add_(0, group, centred**2)
        std = (square / (count - 1).clamp(min=1)).sqrt()[group]
        out = torch.where(all_equal, out, out / (std + _EPS))
    return out.to(torch.float32)
