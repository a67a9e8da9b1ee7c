"""Off-policy corrections: weights for tokens that another policy sampled than the one that is being updated.

Three policies meet in a step, each with a log-prob for every token:

    behaviour μ   sampled the token; its log-prob came with the token from the engine
    proximal  p   what the clip is around: the learner's policy before this update
    current   π   what the gradient flows through

The clip bounds π/p; the weights here stand for ρ = p/μ (older versions, another kernel, another dtype). They carry no
gradient and multiply a token's objective; masks are weights of 0 and 1, so corrections are combined by multiplying
(`combine`). Where p is μ itself (`proximal = "behaviour"`) the ratio already is the correction, and weighting again
would count it twice.

What always holds: a token outside the mask has weight 0 and is not looked at. A trained token whose ρ is not a number
has weight 0, and so has its whole sequence under a rule about sequences; `combine` counts such tokens. The denominator
of the loss stays that of all trained tokens (`core.algorithms.denominators`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from core.algorithms.ratios import LOG_RATIO_LIMIT, sequence_log_ratio
from core.algorithms.segments import masked, segment_sum, sequences_in


def token_tis(
    proximal: Tensor, behaviour: Tensor, cap: float, *, floor: float = 0.0, mask: Tensor | None = None
) -> Tensor:
    """Truncated importance weights per token: ρ held in [floor, cap].

    proximal, behaviour: floating [tokens], log-probs of the sampled tokens. 0 <= floor <= cap, cap > 0.
    Returns [tokens] of the same dtype, without gradient. Source: truncated importance sampling as in IMPALA
    (arXiv 1802.01561), per token as "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025).
    """
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}")
    _check_bounds(floor, cap)
    return _only_trained(_ratio(proximal, behaviour, mask).clamp(floor, cap), proximal, behaviour, mask)


def icepop(proximal: Tensor, behaviour: Tensor, low: float, high: float, *, mask: Tensor | None = None) -> Tensor:
    """ρ where low <= ρ <= high, else 0: tokens that learner and engine disagree about are left out instead of cut.

    Shapes as in `token_tis`. Source: IcePop, "Every Step Evolves" (arXiv 2510.18855); there low 0.5, high 5.
    """
    rho = _ratio(proximal, behaviour, mask)
    return rho * token_mask(proximal, behaviour, low, high, mask=mask)


def token_mask(proximal: Tensor, behaviour: Tensor, low: float, high: float, *, mask: Tensor | None = None) -> Tensor:
    """1 where low <= ρ <= high, else 0; [tokens]."""
    _check_bounds(low, high)
    rho = _ratio(proximal, behaviour, mask)
    return _only_trained(((rho >= low) & (rho <= high)).to(rho.dtype), proximal, behaviour, mask)


def sequence_tis(
    proximal: Tensor, behaviour: Tensor, sequence: Tensor, cap: float, *, mask: Tensor | None = None
) -> Tensor:
    """min(Π_t ρ_t, cap) of its sequence for every token: the unbiased weight, whose spread grows with the length.

    sequence: int64 [tokens], whole sequences. Returns [tokens].
    """
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}")
    weight = _sequence_ratio(proximal, behaviour, sequence, mean=False, mask=mask).clamp(max=cap)
    return _only_trained(weight[sequence], proximal, behaviour, mask, sequence)


def sequence_mask(
    proximal: Tensor,
    behaviour: Tensor,
    sequence: Tensor,
    low: float,
    high: float,
    *,
    aggregate: str = "geometric",
    mask: Tensor | None = None,
) -> Tensor:
    """1 for the tokens of sequences whose ratio lies in [low, high], else 0; [tokens].

    aggregate:
        geometric   (Π ρ_t)^(1/T): does not depend on the length; the field's bounds are 0.99..1.01 and 0.999..1.001
        product     Π ρ_t: its spread grows with T, so on thousands of tokens it drops nearly everything
    Source: masked importance sampling, "When Speed Kills Stability" (2025), and Dr.Kernel (geometric, 0.999..1.001).
    """
    _check_bounds(low, high)
    if aggregate not in ("geometric", "product"):
        raise ValueError(f"unknown aggregate {aggregate!r}; known: geometric, product")
    ratio = _sequence_ratio(proximal, behaviour, sequence, mean=aggregate == "geometric", mask=mask)
    keep = ((ratio >= low) & (ratio <= high)).to(proximal.dtype)
    return _only_trained(keep[sequence], proximal, behaviour, mask, sequence)


def token_veto(
    proximal: Tensor,
    behaviour: Tensor,
    sequence: Tensor,
    floor: float,
    *,
    ceiling: float = float("inf"),
    mask: Tensor | None = None,
) -> Tensor:
    """0 for all tokens of a sequence in which any trained token has ρ < floor (or > ceiling), else 1; [tokens].

    Source: Dr.Kernel's token veto (floor 1e-4): one token that the learner holds to be impossible spoils the sequence.
    """
    _check_bounds(floor, ceiling)
    n = sequences_in(sequence)
    rho = _ratio(proximal, behaviour, mask)
    spoiled = masked(((rho < floor) | (rho > ceiling)).to(rho.dtype), mask)
    keep = (segment_sum(spoiled, sequence, n) == 0).to(rho.dtype)
    return _only_trained(keep[sequence], proximal, behaviour, mask, sequence)


def off_policy_sequence_mask(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    sequence: Tensor,
    threshold: float,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """0 where A < 0 and the sequence's mean of log μ - log π is above `threshold`, else 1; [tokens].

    Bad samples that the current policy would hardly draw any more teach it nothing it can use.
    Source: DeepSeek-V3.2 (arXiv 2512.02556).
    """
    n = sequences_in(sequence)
    gap = -sequence_log_ratio(logprobs.detach(), behaviour, sequence, mean=True, mask=mask, sequences=n)
    keep = ~((masked(advantages, mask) < 0) & (gap > threshold)[sequence])
    return _only_trained(keep.to(logprobs.dtype), logprobs, behaviour, mask, sequence)


class Correction(NamedTuple):
    """`combine`'s answer."""

    weights: Tensor
    """[tokens], the product of all; 0 outside the mask"""
    masked_tokens: dict[str, int]
    """trained tokens that each correction alone has set to 0"""
    masked_by_any: int
    """trained tokens with weight 0 in the product"""
    not_finite: int
    """trained tokens whose ρ is not a number (in every count above as well)"""
    tokens: int
    """trained tokens: what the counts are shares of"""


def combine(
    corrections: Mapping[str, Tensor], proximal: Tensor, behaviour: Tensor, *, mask: Tensor | None = None
) -> Correction:
    """The product of corrections by name, with what each of them took out. Counts are local sums: add them over ranks.

    corrections: {name: weights [tokens]}; none: weight 1 for every trained token with a finite ρ.
    """
    trained = torch.ones_like(proximal, dtype=torch.bool) if mask is None else mask
    product = _only_trained(torch.ones_like(proximal.detach()), proximal, behaviour, mask)
    for weights in corrections.values():
        product = product * weights
    return Correction(
        weights=product,
        masked_tokens={name: int((trained & (weights == 0)).sum()) for name, weights in corrections.items()},
        masked_by_any=int((trained & (product == 0)).sum()),
        not_finite=int((trained & ~_finite(proximal, behaviour)).sum()),
        tokens=int(trained.sum()),
    )


def _check_bounds(low: float, high: float) -> None:
    if not 0 <= low <= high:
        raise ValueError(f"bounds on a ratio must be 0 <= low <= high, got low {low} and high {high}")


def _finite(proximal: Tensor, behaviour: Tensor) -> Tensor:
    """Which tokens have a ρ: both log-probs are finite. An infinite difference of finite numbers can't be."""
    return torch.isfinite(proximal.detach()) & torch.isfinite(behaviour.detach())


def _ratio(proximal: Tensor, behaviour: Tensor, mask: Tensor | None) -> Tensor:
    """ρ [tokens]; 1 where there is none."""
    known = _finite(proximal, behaviour) if mask is None else mask & _finite(proximal, behaviour)
    difference = masked(proximal.detach(), known) - masked(behaviour.detach(), known)
    return torch.exp(difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def _sequence_ratio(
    proximal: Tensor, behaviour: Tensor, sequence: Tensor, *, mean: bool, mask: Tensor | None
) -> Tensor:
    """Product or geometric mean of ρ [sequences], over the tokens that have one."""
    known = _finite(proximal, behaviour) if mask is None else mask & _finite(proximal, behaviour)
    log = sequence_log_ratio(proximal.detach(), behaviour, sequence, mean=mean, mask=known)
    return torch.exp(log.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def _only_trained(
    weights: Tensor, proximal: Tensor, behaviour: Tensor, mask: Tensor | None, sequence: Tensor | None = None
) -> Tensor:
    """`weights` with 0 outside the mask and where ρ (with `sequence`: any ρ of the sequence) is not a number."""
    bad = ~_finite(proximal, behaviour) if mask is None else mask & ~_finite(proximal, behaviour)
    if sequence is not None:
        n = sequences_in(sequence)
        bad = (segment_sum(bad.to(torch.float64), sequence, n) > 0)[sequence]
    keep = ~bad if mask is None else mask & ~bad
    return torch.where(keep, weights, torch.zeros_like(weights))
