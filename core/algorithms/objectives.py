"""Objectives: what a token contributes to the loss.

    loss = Σ_tokens weight_i · ( ŵ_t · objective_t + c_kl · kl_t - c_H · H_t )

weight_i is the denominator (`core.algorithms.denominators`), ŵ_t the off-policy correction
(`core.algorithms.corrections`). Every objective is to be minimised and answers with a `TokenObjective`. With r = π/old
at the sampled token and A its advantage:

    ppo_clip          max(-A·r, -A·clip(r, 1-low, 1+high))                    old: proximal, or behaviour
      dual clip       for A < 0 no more than -A·c                             c > 1
    cispo             -A · sg(clip(r, 1-low, 1+high)) · log π                 every token keeps a gradient
    gspo              ppo_clip with r the geometric mean of its sequence
    dppo              -A · r, 0 where π - μ has gone too far the way A pushes  old: behaviour
    policy_gradient   -A · sg(min(r, cap)) · log π                            old: behaviour
    decoupled_ppo     sg(min(p/μ, cap)) · ppo_clip(π, p)

Tokens outside `mask` give 0 and no gradient, whatever they hold. A trained token that is not finite stays visible:
`segments.screen` is what takes such tokens out, and counts them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from core.algorithms.corrections import icepop, token_tis
from core.algorithms.denominators import DENOMINATORS as DENOMINATORS
from core.algorithms.denominators import sample_weights as sample_weights
from core.algorithms.kl import kl_k3 as kl_k3
from core.algorithms.ratios import LOG_RATIO_LIMIT, log_ratio, sequence_log_ratio
from core.algorithms.segments import masked


class TokenObjective(NamedTuple):
    """All [tokens]; 0, 1 and False outside the mask."""

    loss: Tensor
    """with gradient"""
    ratio: Tensor
    """π/old as the objective uses it before its bounds; no gradient"""
    held: Tensor
    """bool: the bounds act on this token (no gradient left, or, for cispo and policy_gradient, a bounded one)"""


def ppo_clip(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    mask: Tensor | None = None,
) -> TokenObjective:
    """Clipped surrogate per token, to be minimised: max(-A·r, -A·clip(r, 1-low, 1+high)), r = exp(π - p).

    logprobs: floating [tokens], log-probs under the current policy, with gradient.
    proximal: floating [tokens], log-probs under the policy that the clip is around; no gradient.
    advantages: floating [tokens].
    dual_clip: c > 1 bounds the loss of a token with A < 0 by -A·c (None: no bound).
    mask: bool [tokens] of the trained tokens; None: all.

    A clipped token has no gradient.
    Source: PPO (arXiv 1707.06347); the two bounds apart are DAPO's clip-higher (arXiv 2503.14476); dual clip
    (arXiv 1912.09729).
    """
    log_r = log_ratio(logprobs, proximal, mask)
    return _clipped(torch.exp(log_r), masked(advantages, mask), clip_low, clip_high, dual_clip)


def gspo(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    sequence: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    mask: Tensor | None = None,
) -> TokenObjective:
    """Clipped surrogate with the ratio of the whole sequence: s_i = exp(mean_t (log π - log p)).

    In the form s_t = sg(s_i) · π_t / sg(π_t): the value is that of the sequence, the gradient of token t flows through
    token t alone, so that a token's weights (denominator, correction) act on its own gradient. With equal advantages in
    a sequence and denominator `sequence`, value and gradient are those of the sequence objective.

    sequence: int64 [tokens]; whole sequences must stand in the row. Other shapes as in `ppo_clip`.
    Source: GSPO (arXiv 2507.18071), its token form (GSPO-token).
    """
    mean = sequence_log_ratio(logprobs.detach(), proximal, sequence, mean=True, mask=mask)
    current = masked(logprobs, mask)
    log_s = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)[sequence]
    if mask is not None:
        log_s = masked(log_s, mask)
    return _clipped(
        torch.exp(log_s + (current - current.detach())), masked(advantages, mask), clip_low, clip_high, None
    )


def cispo(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
    mask: Tensor | None = None,
) -> TokenObjective:
    """-A · sg(clip(r, 1-low, 1+high)) · log π per token: the weight is bounded, the gradient never cut off.

    Shapes as in `ppo_clip`. clip_low = 1 leaves the lower side open, as the paper does.
    Source: MiniMax-M1 (arXiv 2506.13585).
    """
    ratio = torch.exp(log_ratio(logprobs, proximal, mask)).detach()
    weight = ratio.clamp(max(0.0, 1.0 - clip_low), 1.0 + clip_high)
    return TokenObjective(-masked(advantages, mask) * weight * masked(logprobs, mask), ratio, weight != ratio)


def dppo(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    cap: float | None = None,
    mask: Tensor | None = None,
) -> TokenObjective:
    """-A·r per token, 0 where the probability has moved too far from the one that sampled, the way A pushes.

        drop = (A > 0 and π - μ > high) or (A <= 0 and π - μ < -low)          probabilities, not their logs

    |π - μ| is the total variation seen at the sampled token: a rare token may double, a sure one may not halve.
    cap: bound on r as a weight (None: none); such a token keeps the gradient -A·cap·∇log π.
    Shapes as in `ppo_clip`, with `behaviour` in place of the proximal policy.
    Source: DPPO, "Rethinking the Trust Region in LLM RL" (arXiv 2602.04879), binary total variation.
    """
    adv = masked(advantages, mask)
    current, mu = masked(logprobs, mask), masked(behaviour.detach(), mask)
    ratio = torch.exp(log_ratio(logprobs, behaviour, mask)).detach()
    moved = torch.exp(current.detach()) - torch.exp(mu)
    drop = torch.where(adv > 0, moved > high, moved < -low)
    weight = ratio if cap is None else ratio.clamp(max=cap)
    surrogate = -adv * weight * (1.0 + current - current.detach())  # value -A·w, gradient -A·w·∇log π
    return TokenObjective(torch.where(drop, torch.zeros_like(surrogate), surrogate), ratio, drop)


def policy_gradient(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, cap: float, mask: Tensor | None = None
) -> TokenObjective:
    """-A · sg(min(π/μ, cap)) · log π per token: REINFORCE with a truncated importance weight, no trust region.

    Shapes as in `dppo`. cap > 0. Source: IMPALA (arXiv 1802.01561); as the default of PipelineRL (arXiv 2509.19128).
    """
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}")
    ratio = torch.exp(log_ratio(logprobs, behaviour, mask)).detach()
    weight = ratio.clamp(max=cap)
    return TokenObjective(-masked(advantages, mask) * weight * masked(logprobs, mask), ratio, ratio > cap)


def decoupled_ppo(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    cap: float = 5.0,
    beyond_cap: str = "cut",
    mask: Tensor | None = None,
) -> TokenObjective:
    """sg(p/μ) · ppo_clip(π, p): three policies; the clip is around the proximal one, the weight leads to it from μ.

    proximal: recomputed before the update, or `ratios.loglinear_proximal`. beyond_cap: tokens with p/μ > cap are `cut`
    to weight cap, or `masked`. Shapes as in `ppo_clip`.
    Source: decoupled PPO (arXiv 2110.00641) as in AReaL (arXiv 2505.24298).
    """
    if beyond_cap not in ("cut", "masked"):
        raise ValueError(f"unknown beyond_cap {beyond_cap!r}; known: cut, masked")
    clip = ppo_clip(logprobs, proximal, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip,
                    mask=mask)  # fmt: skip
    if beyond_cap == "cut":
        weight = token_tis(proximal, behaviour, cap, mask=mask)
    else:
        weight = icepop(proximal, behaviour, 0.0, cap, mask=mask)
    return TokenObjective(weight * clip.loss, clip.ratio, clip.held | (masked(weight, mask, 1.0) == 0))


def entropy(logits: Tensor) -> Tensor:
    """H = -Σ_v p_v log p_v in nats. logits: floating [..., vocab]; returns [...]. The learner never makes all logits at
    once: `core.training.logprobs` computes the same chunk by chunk. As a bonus it stands in the loss with a minus."""
    below = logits - logits.amax(-1, keepdim=True).detach()
    weights = below.exp()
    total = weights.sum(-1)
    return total.log() - (weights * below).sum(-1) / total  # in float32 some ten times closer than -Σ p log p


def _clipped(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> TokenObjective:
    if dual_clip is not None and dual_clip <= 1.0:
        raise ValueError(f"dual_clip must be above 1, got {dual_clip}")
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss, held = torch.maximum(plain, bounded), bounded > plain
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        beyond = (advantages < 0) & (loss > ceiling)
        loss, held = torch.where(beyond, ceiling, loss), held | beyond
    return TokenObjective(loss, ratio.detach(), held.detach())
