"""What is done to returns before they are compared, and to groups before they are trained: shaping and selection."""

import torch
from torch import Tensor

REASONS = ("no_member", "singleton", "all_equal", "mean_too_low", "mean_too_high")
"""Why a group is dropped: every member was masked out; one is left, which has nothing to be compared with; all returns
are equal but for rounding, so that all advantages are 0 or noise; its mean return is outside the range asked for."""


ROUNDING = 1e-9
"""Returns nearer than this share of the largest (or of 1) are equal: no reward is meant that finely."""


def overlong_penalty(lengths: Tensor, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> Tensor:
    """Soft punishment of length, to be added to the return; float64 [samples], in [-factor, 0].

        0 up to max - buffer;  (max - buffer - n) / buffer · factor in between;  -factor at max and beyond

    lengths: int64 [samples], generated tokens. Source: DAPO (arXiv 2503.14476), soft overlong punishment.
    """
    if not 0 < buffer_tokens <= max_tokens:
        raise ValueError(f"buffer_tokens must lie in 1..max_tokens ({max_tokens}), got {buffer_tokens}")
    over = (lengths - (max_tokens - buffer_tokens)).to(torch.float64)
    return -factor * (over / buffer_tokens).clamp(0.0, 1.0)


def overlong_members(members: Tensor, truncated: Tensor) -> Tensor:
    """Members without those that were cut off at the token limit (DAPO's overlong filtering); both bool [samples]."""
    return members & ~truncated


def normalise_returns(
    returns: Tensor,
    group: Tensor,
    *,
    centre: str = "none",
    scale: str = "none",
    bounds: tuple[float, float] | None = None,
    members: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Returns held in `bounds`, less a mean, over a deviation; float64 [samples], 0 for those masked out.

    returns: floating [samples]; group: int64 [samples]. centre, scale: `none`, `group` or `batch`: over whose members
    the mean and the sample standard deviation (n-1; plus eps) are taken. Where the numbers of such a set are all equal,
    nothing is divided, and what is centred is exactly 0.
    """
    for name, choice in (("centre", centre), ("scale", scale)):
        if choice not in ("none", "group", "batch"):
            raise ValueError(f"unknown {name} {choice!r}; known: none, group, batch")
    at = torch.arange(len(returns), device=returns.device) if members is None else members.nonzero()[:, 0]
    out = torch.zeros(returns.shape, dtype=torch.float64, device=returns.device)
    if at.numel() == 0:
        return out
    r = returns[at].to(torch.float64)
    if not torch.isfinite(r).all():
        raise ValueError("non-finite return: mask such samples out (`members`)")
    r = r if bounds is None else r.clamp(*bounds)
    everyone, own = torch.zeros_like(group[at]), group[at]
    value = r.clone()
    if centre != "none":
        mean, _, equal = _statistics(r, own if centre == "group" else everyone)
        value = torch.where(equal, torch.zeros_like(r), r - mean)
    if scale != "none":
        _, std, equal = _statistics(r, own if scale == "group" else everyone)
        value = torch.where(equal, value, value / (std + eps))
    out[at] = value
    return out


def dynamic_sampling(
    returns: Tensor,
    group: Tensor,
    groups: int,
    *,
    members: Tensor | None = None,
    mean_bounds: tuple[float, float] | None = None,
) -> tuple[Tensor, list[str | None]]:
    """Which groups have something to teach: (bool [groups], for each the reason of REASONS it is dropped for, or None).

    returns: floating [samples]; group: int64 [samples] in 0..groups-1; members: bool [samples].
    mean_bounds: the mean return must lie strictly between these (DAPO's 0 < accuracy < 1 follows from `all_equal` where
        returns are 0 or 1; bounds are for graded returns).
    Dropping here only says so: the sampler admits others in their place. Source: DAPO (arXiv 2503.14476).
    """
    keep = torch.ones_like(returns, dtype=torch.bool) if members is None else members
    if not torch.isfinite(returns[keep]).all():
        raise ValueError("non-finite return: mask such samples out (`members`)")
    by_group: list[list[float]] = [[] for _ in range(groups)]
    for number, value, counts in zip(group.tolist(), returns.double().tolist(), keep.tolist(), strict=True):
        if counts:
            by_group[number].append(value)
    reasons = [_reason(values, mean_bounds) for values in by_group]
    return torch.tensor([reason is None for reason in reasons], dtype=torch.bool, device=returns.device), reasons


def _reason(values: list[float], mean_bounds: tuple[float, float] | None) -> str | None:
    if not values:
        return "no_member"
    if len(values) == 1:
        return "singleton"
    low, high = min(values), max(values)
    if high - low <= ROUNDING * max(1.0, abs(low), abs(high)):
        return "all_equal"
    if mean_bounds is None:
        return None
    mean = sum(values) / len(values)
    if mean <= mean_bounds[0]:
        return "mean_too_low"
    return "mean_too_high" if mean >= mean_bounds[1] else None


def _statistics(r: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, sample deviation, all equal) of each sample's set; [samples] each."""
    sets = int(key.max()) + 1
    n = torch.zeros(sets, dtype=torch.float64, device=r.device).index_add_(0, key, torch.ones_like(r))
    mean = torch.zeros_like(n).index_add_(0, key, r) / n.clamp(min=1)
    square = torch.zeros_like(n).index_add_(0, key, (r - mean[key]) ** 2)
    low = torch.full_like(n, torch.inf).scatter_reduce_(0, key, r, "amin")
    high = torch.full_like(n, -torch.inf).scatter_reduce_(0, key, r, "amax")
    return mean[key], (square / (n - 1).clamp(min=1)).sqrt()[key], (low == high)[key]
