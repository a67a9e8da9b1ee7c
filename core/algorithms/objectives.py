"""Objectives: what a token contributes to the loss, and the number that the sum is divided by.

    loss = Σ_tokens weight_i · ( ŵ_t · clip_t + c_kl · k3_t - c_H · H_t )

weight_i is the denominator, as one number for each sample i (`sample_weights`): it is computed once per step over all
samples of all ranks. A micro-batch only ever sums, so that the loss and the gradients can't depend on how the samples
were cut into micro-batches, in which order they were packed, or on how many ranks.
"""

import torch
from torch import Tensor

from core.algorithms.corrections import LOG_RATIO_LIMIT

DENOMINATORS = ("token", "sequence", "constant")


def sample_weights(lengths: Tensor, denominator: str, *, constant_tokens: int = 0) -> Tensor:
    """The weight of each token of sample i, so that the loss is a plain weighted sum over tokens.

    lengths: int64 [samples], trained tokens of every sample of the step, on all ranks; all ≥ 1.
    denominator:
        token      1 / Σ_j lengths_j                  every token counts the same (DAPO, arXiv 2503.14476)
        sequence   1 / (samples · lengths_i)          every sample counts the same (GRPO, arXiv 2402.03300)
        constant   1 / (samples · constant_tokens)    neither depends on the batch's lengths (Dr.GRPO, arXiv 2503.20783)
    constant_tokens: for `constant`, the generation budget of a sample.

    Returns float64 [samples].
    """
    if denominator not in DENOMINATORS:
        raise ValueError(f"unknown denominator {denominator!r}; known: {', '.join(DENOMINATORS)}")
    if lengths.ndim != 1 or lengths.numel() == 0 or int(lengths.min()) < 1:
        raise ValueError("lengths is [samples] with at least one trained token each; leave empty samples out before")
    n = lengths.to(torch.float64)
    if denominator == "token":
        return torch.ones_like(n) / n.sum()
    if denominator == "sequence":
        return 1.0 / (n.numel() * n)
    if constant_tokens < 1:
        raise ValueError("denominator 'constant' needs constant_tokens >= 1 (the generation budget of a sample)")
    return torch.full_like(n, 1.0 / (n.numel() * constant_tokens))


def ppo_clip(
    logprobs: Tensor, proximal: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Clipped surrogate per token, to be minimised: max(-A·r, -A·clip(r, 1-low, 1+high)), r = exp(π - p).

    logprobs: floating [tokens], log-probs under the current policy, with gradient.
    proximal: floating [tokens], log-probs under the policy that the clip is around; no gradient.
    advantages: floating [tokens].

    Returns (objective [tokens], ratio [tokens] without gradient, clipped bool [tokens]); a clipped token has no
    gradient.
    Source: PPO (arXiv 1707.06347); the two bounds apart are DAPO's clip-higher (arXiv 2503.14476).
    """
    ratio = torch.exp((logprobs - proximal.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    plain = -advantages * ratio
    held = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return torch.maximum(plain, held), ratio.detach(), (held > plain).detach()


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate per token of KL(π ‖ reference): exp(d) - 1 - d with d = reference - π; never negative.

    logprobs: floating [tokens] with gradient; reference: floating [tokens], no gradient. Returns [tokens].
    Source: J. Schulman, "Approximating KL divergence" (2020), the estimator k3; used as a loss by GRPO.
    """
    d = (reference.detach() - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(d) - d


def entropy(logits: Tensor) -> Tensor:
    """H = -Σ_v p_v log p_v in nats. logits: floating [..., vocab]; returns [...]. The learner never makes all logits at
    once: `core.training.logprobs` computes the same chunk by chunk."""
    logp = torch.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1)
