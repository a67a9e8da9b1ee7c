"""Log-ratios of two policies at the sampled tokens, and the proximal policy without a forward pass of its own."""

import torch
from torch import Tensor

from core.algorithms.segments import count, masked, segment_sum, sequences_in

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held in ± this before exp, so that a broken token can't overflow."""


def log_ratio(new: Tensor, old: Tensor, mask: Tensor | None = None) -> Tensor:
    """log new - log old, held in ± LOG_RATIO_LIMIT; gradient through `new` alone; 0 outside the mask. [tokens]."""
    return (masked(new, mask) - masked(old.detach(), mask)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sequence_log_ratio(
    new: Tensor, old: Tensor, sequence: Tensor, *, mean: bool, mask: Tensor | None = None, sequences: int | None = None
) -> Tensor:
    """Σ_t (or mean over t) of log new - log old over the trained tokens of each sequence; [sequences].

    The sum is the log of the product of the ratios, the mean that of their geometric mean. Single tokens are not
    clamped here, so that the order of summation is all that clamping could have changed; the caller clamps the result.
    Sequences without a trained token give 0. Whole sequences must stand in the row.
    """
    sequences = sequences_in(sequence) if sequences is None else sequences
    total = segment_sum(masked(new, mask) - masked(old.detach(), mask), sequence, sequences)
    return total / count(sequence, sequences, mask).clamp(min=1).to(total.dtype) if mean else total


def loglinear_proximal(
    logprobs: Tensor,
    behaviour: Tensor,
    versions: Tensor,
    *,
    proximal_version: int,
    current_version: int,
    mask: Tensor | None = None,
) -> Tensor:
    """The proximal policy's log-probs, approximated from per-token versions instead of another forward pass.

        log p ≈ log μ + α · (log π - log μ),   α = (v_p - v_μ) / (v_π - v_μ), held in [0, 1]

    A policy is taken to move in a straight line from the version that sampled the token to the current one. Where v_μ
    is v_p or newer, p is μ; with v_p = v_π, p is π held still.

    logprobs, behaviour: floating [tokens]; versions: integer [tokens], of the policy that sampled each token.
    proximal_version: version before this step's updates; current_version: updates applied to π, ≥ proximal_version.
    Returns [tokens] without gradient. Source: AReaL's `loglinear` approximation (arXiv 2512.06547).
    """
    if current_version < proximal_version:
        raise ValueError(f"the current policy (version {current_version}) can't be older than the proximal one "
                         f"({proximal_version})")  # fmt: skip
    mu = masked(behaviour.detach(), mask)
    moved = masked(logprobs.detach(), mask) - mu
    lag = (current_version - versions).to(mu.dtype)
    alpha = ((proximal_version - versions).to(mu.dtype) / torch.where(lag == 0, torch.ones_like(lag), lag)).clamp(0, 1)
    alpha = torch.where(lag <= 0, torch.zeros_like(alpha), alpha)
    if proximal_version == current_version:
        alpha = torch.ones_like(alpha)  # p is the current policy, whatever sampled the token
    return mu + alpha * moved
