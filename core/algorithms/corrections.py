"""Off-policy corrections: weights for tokens that another policy sampled than the one that is being updated.

Three policies meet in a step, each with a log-prob for every token:

    behaviour μ   sampled the token; its log-prob came with the token from the engine
    proximal  p   what the clip is around: the learner's policy before this update
    current   π   what the gradient flows through

The clip bounds π/p; the weights here stand for p/μ (older versions, another kernel, another dtype). They carry no
gradient. Where p is μ itself (`proximal = "behaviour"`) the ratio already is the correction, and weighting again would
count it twice.
"""

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held in ± this before exp, so that a broken token can't overflow."""


def token_tis(proximal: Tensor, behaviour: Tensor, cap: float) -> Tensor:
    """Truncated importance weights per token: min(exp(p - μ), cap).

    proximal, behaviour: floating [tokens], log-probs of the sampled tokens. cap: > 0.
    Returns [tokens] of the same dtype, without gradient. Source: truncated importance sampling as in IMPALA
    (arXiv 1802.01561), per token as "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025).
    """
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}")
    log_ratio = (proximal.detach() - behaviour.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.exp(log_ratio).clamp(max=cap)
