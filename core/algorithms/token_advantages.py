"""Advantages with one number per token: REINFORCE++ and GAE, over trained tokens only.

A sequence may hold tokens that the policy did not sample (tool output between turns). Those are passed over: they are
no end of the episode, no step of the discount, and have no value of their own. All functions answer with float64
[tokens], 0 outside the mask.

Normalising over a batch needs the batch of all ranks: `Moments` are made locally, gathered, merged, and passed in.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from core.algorithms.segments import masked, reverse_scan, segment_extreme, sequences_in


def outcome_rewards(returns: Tensor, sequence: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Rewards [tokens], float64: each sequence's return on its last trained token, 0 elsewhere.

    returns: floating [sequences]; sequence: int64 [tokens].
    """
    place = torch.arange(len(sequence), dtype=torch.float64, device=sequence.device)
    last = segment_extreme(masked(place, mask, -1.0), sequence, len(returns), largest=True)
    out = torch.zeros_like(place)
    has = torch.isfinite(last) & (last >= 0)
    out[last[has].to(torch.int64)] = returns.to(torch.float64)[has]
    return out


def token_returns(rewards: Tensor, sequence: Tensor, *, gamma: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Return-to-go R_t = r_t + γ·R_next over trained tokens; [tokens].

    rewards: floating [tokens] (`outcome_rewards`, plus `kl.kl_reward` where the KL stands in the reward).
    """
    _check_unit("gamma", gamma)
    return reverse_scan(rewards, sequence, mask, gamma)


class Moments(NamedTuple):
    """Of the trained tokens of a batch: how many, their mean, Σ (x - mean)², and the smallest and largest."""

    size: int
    mean: float
    square: float
    low: float
    high: float


def moments(values: Tensor, mask: Tensor | None = None) -> Moments:
    """Moments of one rank's (or micro-batch's) tokens. values: floating [tokens]."""
    kept = (values if mask is None else values[mask]).to(torch.float64)
    if kept.numel() == 0:
        return Moments(0, 0.0, 0.0, float("inf"), float("-inf"))
    mean = kept.mean()
    return Moments(kept.numel(), float(mean), float(((kept - mean) ** 2).sum()), float(kept.min()), float(kept.max()))


def merge(parts: Sequence[Moments]) -> Moments:
    """Moments of all parts together (Chan, Golub and LeVeque's rule, exact up to rounding)."""
    out = Moments(0, 0.0, 0.0, float("inf"), float("-inf"))
    for part in parts:
        n = out.size + part.size
        if part.size == 0:
            continue
        apart = part.mean - out.mean
        out = Moments(
            n,
            out.mean + apart * part.size / n,
            out.square + part.square + apart * apart * out.size * part.size / n,
            min(out.low, part.low),
            max(out.high, part.high),
        )
    return out


def whiten(values: Tensor, batch: Moments, *, mask: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the trained tokens of the batch, var with n-1; float64 [tokens].

    Exactly 0 where all of the batch's numbers are equal. batch: of all ranks.
    """
    kept = masked(values, mask).to(torch.float64)
    if batch.size == 0 or batch.low == batch.high:
        return torch.zeros_like(kept)
    spread = (batch.square / (batch.size - 1) + eps) ** 0.5
    return masked((kept - batch.mean) / spread, mask)


def reinforce_plus_plus(
    rewards: Tensor, sequence: Tensor, *, gamma: float = 1.0, mask: Tensor | None = None, batch: Moments | None = None
) -> Tensor:
    """Return-to-go over trained tokens, normalised over the batch; [tokens].

    batch: moments of `token_returns` over all ranks; None: these tokens are the whole batch.
    Source: REINFORCE++ (arXiv 2501.03262).
    """
    returns = token_returns(rewards, sequence, gamma=gamma, mask=mask)
    return whiten(returns, batch if batch is not None else moments(returns, mask), mask=mask)


def gae(
    rewards: Tensor,
    values: Tensor,
    sequence: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over trained tokens: (advantages, returns), both [tokens].

        δ_t = r_t + γ·V_next - V_t        A_t = δ_t + γλ·A_next        return_t = A_t + V_t

    next is the next trained token of the sequence. rewards, values: floating [tokens].
    bootstrap: floating [sequences], value of the state behind the last token (a truncated episode); None: 0, the end.
    Not normalised: `whiten` does that. Source: GAE (arXiv 1506.02438).
    """
    _check_unit("gamma", gamma)
    _check_unit("lam", lam)
    v = masked(values.detach(), mask).to(torch.float64)
    at = torch.arange(len(v), device=v.device) if mask is None else mask.nonzero()[:, 0]
    at = at[torch.argsort(sequence[at], stable=True)]
    ids, here = sequence[at], v[at]
    end = torch.zeros(sequences_in(sequence), dtype=torch.float64, device=v.device)
    if bootstrap is not None:
        end = bootstrap.detach().to(torch.float64)
    follows = torch.zeros_like(ids, dtype=torch.bool)
    follows[:-1] = ids[1:] == ids[:-1]
    after = torch.where(follows, torch.roll(here, -1), end[ids] if len(ids) else here)
    delta = torch.zeros_like(v)
    delta[at] = masked(rewards.detach(), mask).to(torch.float64)[at] + gamma * after - here
    advantages = reverse_scan(delta, sequence, mask, gamma * lam)
    return advantages, masked(advantages + v, mask)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """Critic's loss per token: ½·max((V - R)², (V_clipped - R)²), V_clipped within ± clip of the old value; [tokens].

    values: floating [tokens] with gradient. clip None: ½(V - R)². Source: PPO (arXiv 1707.06347) as in its code.
    """
    v, old, target = masked(values, mask), masked(old_values.detach(), mask), masked(returns.detach(), mask)
    target = target.to(v.dtype)
    square = (v - target) ** 2
    if clip is not None:
        square = torch.maximum(square, (old + (v - old).clamp(-clip, clip) - target) ** 2)
    return 0.5 * square


def _check_unit(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
