"""Advantages: how much better a sample did than the others it is compared with.

Samples are compared within their key (group, turn, role) and are found by id, never by position: groups are uneven when
members were masked out (infra trouble), and a baseline over rows would then mix episodes of different tasks.

    mean            A_i = R_i - mean_j R_j                           group mean (Dr.GRPO, arXiv 2503.20783)
    leave_one_out   A_i = R_i - mean_{j≠i} R_j = n/(n-1)·(R_i - mean)   RLOO (arXiv 2402.14740); with return-to-go per
                    turn index it is the TRLOO baseline of Dr.Kernel
    maxrl           A_i = (R_i - mean) / mean                        MaxRL (arXiv 2602.02710); returns >= 0
    none            A_i = R_i                                        REINFORCE

A member that is masked out counts in nobody's baseline and has advantage 0, whatever its return holds.
A key with one member has nothing to be compared with: advantage 0. Members whose returns are all exactly equal have
advantage exactly 0, decided by equality and not by a small standard deviation: rounding noise in a mean of equal
numbers, divided by its own tiny deviation, would make a large advantage out of nothing.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

BASELINES = ("leave_one_out", "mean", "maxrl", "none")
SCALES = ("none", "group", "batch")
_EPS = 1e-6


def index_by_key(keys: Sequence[Hashable]) -> Tensor:
    """Dense numbers int64 [samples] for `keys`: equal keys get equal numbers, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys], dtype=torch.int64)


def advantages(
    returns: Tensor,
    group: Tensor,
    *,
    baseline: str = "leave_one_out",
    std_normalisation: bool = False,
    scale: str = "none",
    members: Tensor | None = None,
    eps: float = _EPS,
) -> Tensor:
    """Advantage of every sample against the other members of its group.

    returns: floating [samples], finite where they count.
    group: int64 [samples], numbers 0..G-1 (`index_by_key` of (group id, turn, role)).
    baseline: one of BASELINES.
    std_normalisation: the same as scale = "group".
    scale: what the difference is divided by, plus eps: `group`, the group's sample standard deviation (n-1 in the
        denominator; GRPO, arXiv 2402.03300); `batch`, that of all members' returns about the batch's mean; `none`.
        Groups whose returns are all equal stay at 0.
    members: bool [samples], False for those that are masked out; None: all count.

    Returns float32 [samples]; the sums run in float64. Raises ValueError on a wrong shape, name or non-finite return.
    """
    if returns.ndim != 1 or returns.shape != group.shape:
        raise ValueError(f"returns and group are both [samples], got {tuple(returns.shape)} and {tuple(group.shape)}")
    if baseline not in BASELINES:
        raise ValueError(f"unknown baseline {baseline!r}; known: {', '.join(BASELINES)}")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; known: {', '.join(SCALES)}")
    scale = "group" if std_normalisation else scale
    out = torch.zeros(returns.shape, dtype=torch.float32, device=returns.device)
    at = torch.arange(len(returns), device=returns.device) if members is None else members.nonzero()[:, 0]
    if at.numel() == 0:
        return out
    r, group = returns[at].to(torch.float64), group[at]
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
        value = r.clone()
    elif baseline == "maxrl":
        if float(r.min()) < 0:
            raise ValueError(
                f"baseline 'maxrl' divides by the group's mean: returns must be >= 0, got {float(r.min())}"
            )
        value = centred / torch.where(all_equal, torch.ones_like(r), mean[group])  # unequal and >= 0: the mean is > 0
    else:
        value = centred * n / (n - 1).clamp(min=1) if baseline == "leave_one_out" else centred.clone()
    if baseline != "none":
        value[all_equal] = 0.0  # singletons are all equal to themselves
    if scale == "group":
        square = torch.zeros_like(mean).index_add_(0, group, centred**2)
        std = (square / (count - 1).clamp(min=1)).sqrt()[group]
        value = torch.where(all_equal, value, value / (std + eps))
    elif scale == "batch" and float(r.min()) != float(r.max()):
        value = value / (r.std() + eps)
    out[at] = value.to(torch.float32)
    return out


def turn_returns(
    scores: Tensor, episode: Tensor, turn: Tensor, *, gamma: float = 1.0, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return-to-go of every turn, R_t = Σ_{k>=t} γ^(k-t) s_k over the turns of its episode.

    scores: floating [turns]; episode: int64 [turns]; turn: int64 [turns], index in the episode.
    known: bool [turns], False for a turn without a score (infra trouble); it and every earlier turn of its episode have
        no return. Later turns do.
    Returns (float64 [turns], 0 where there is none; bool [turns], which there are: `members` of `advantages`).
    Source: Kevin-32B (arXiv 2507.11948); Dr.Kernel.
    """
    known = torch.ones_like(scores, dtype=torch.bool) if known is None else known
    s = torch.where(known, scores, torch.zeros_like(scores)).to(torch.float64)
    same = episode[:, None] == episode[None, :]
    later = same & (turn[None, :] >= turn[:, None])
    distance = torch.where(later, turn[None, :] - turn[:, None], torch.zeros_like(turn)[None, :])
    has = ~(later & ~known[None, :]).any(1)
    out = (torch.where(later, float(gamma) ** distance.to(torch.float64), 0.0) * s[None, :]).sum(1)
    return torch.where(has, out, torch.zeros_like(out)), has


def turn_level_advantages(
    scores: Tensor,
    episode: Tensor,
    turn: Tensor,
    group: Tensor,
    *,
    gamma: float = 1.0,
    known: Tensor | None = None,
    scale: str = "none",
) -> tuple[Tensor, Tensor]:
    """Leave-one-out over return-to-go among the turns of the same group and index: the default recipe (TRLOO).

    group: int64 [turns], dense numbers of (group id, role). Others as in `turn_returns`.
    Returns (float32 [turns], bool [turns]: turns that are trained). Source: Dr.Kernel; there a singleton keeps its
    return, here it has advantage 0.
    """
    returns, has = turn_returns(scores, episode, turn, gamma=gamma, known=known)
    key = index_by_key(list(zip(group.tolist(), turn.tolist(), strict=True))).to(returns.device)
    return advantages(returns, key, baseline="leave_one_out", scale=scale, members=has), has
