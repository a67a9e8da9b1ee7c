"""KL to a reference policy, estimated per sampled token. d = log ref - log π at the token that was sampled.

    k1 = -d              unbiased, can be negative
    k2 = d² / 2          biased, never negative
    k3 = e^d - 1 - d     unbiased, never negative
    (J. Schulman, "Approximating KL divergence", 2020)

Where it goes decides which one is right, since a loss uses the estimate's *gradient* and a reward its *value*:
- in the reward (no gradient): k1; its gradient through the policy-gradient term is that of KL(π ‖ ref).
- in the loss, on fresh samples: k2's gradient is that of KL(π ‖ ref), k3's that of KL(ref ‖ π); k1's is noise with mean
  zero, so `kl` refuses it there.
- in the loss, on samples of another policy μ: `kl_ratio_weighted`, π/μ · k with the gradient through both factors. Over
  the samples of μ its value and its gradient are exactly those of KL(π ‖ ref), for k1 and k3.

Clamps: |d| ≤ LOG_RATIO_LIMIT before exp, so nothing overflows; `ceiling` bounds a token's estimate, and a token at the
ceiling has no gradient.
"""

import torch
from torch import Tensor

from core.algorithms.ratios import LOG_RATIO_LIMIT, log_ratio
from core.algorithms.segments import masked

ESTIMATORS = ("k1", "k2", "k3")


def kl(
    logprobs: Tensor,
    reference: Tensor,
    estimator: str = "k3",
    *,
    ceiling: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Estimate of KL(π ‖ reference) per token, in nats; [tokens], 0 outside the mask.

    logprobs: floating [tokens], with gradient when it stands in a loss; reference: floating [tokens], gradient cut.
    ceiling: largest size of an estimate (None: no bound but that of the log-ratio).
    Raises ValueError on an unknown name, and on k1 with gradient (see the module).
    """
    if estimator == "k1" and logprobs.requires_grad:
        raise ValueError(
            "k1 in a loss has a gradient of mean zero: detach for a reward, or use k2, k3 or its ratio form"
        )
    return _bounded(_estimate(logprobs, reference, estimator, mask), ceiling)


def kl_ratio_weighted(
    logprobs: Tensor,
    behaviour: Tensor,
    reference: Tensor,
    estimator: str = "k3",
    *,
    ratio_cap: float | None = None,
    ceiling: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """π/μ · k per token: unbiased in value and gradient for k1 and k3 on samples of μ.

    Source: DeepSeek-V3.2 (arXiv 2512.02556).

    behaviour: floating [tokens], log-probs of the policy that sampled, gradient cut. ratio_cap: bound on π/μ, which
    trades the unbiasedness for a bounded variance.
    """
    ratio = torch.exp(log_ratio(logprobs, behaviour, mask))
    if ratio_cap is not None:
        ratio = ratio.clamp(max=ratio_cap)
    return _bounded(ratio * _estimate(logprobs, reference, estimator, mask), ceiling)


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """`kl` with k3: what GRPO (arXiv 2402.03300) adds to the loss. [tokens]."""
    return kl(logprobs, reference, "k3")


def kl_reward(
    logprobs: Tensor, reference: Tensor, coef: float, *, ceiling: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """Reward per token for staying near the reference: -coef · k1, no gradient; [tokens]. Source: RLHF (2203.02155)."""
    return -coef * kl(logprobs.detach(), reference, "k1", ceiling=ceiling, mask=mask)


def _estimate(logprobs: Tensor, reference: Tensor, estimator: str, mask: Tensor | None) -> Tensor:
    d = (masked(reference.detach(), mask) - masked(logprobs, mask)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return 0.5 * d * d
    if estimator == "k3":
        return torch.expm1(d) - d
    raise ValueError(f"unknown KL estimator {estimator!r}; known: {', '.join(ESTIMATORS)}")


def _bounded(estimate: Tensor, ceiling: float | None) -> Tensor:
    return estimate if ceiling is None else estimate.clamp(-ceiling, ceiling)
