"""Denominators: the number that the sum over tokens is divided by.

    loss = Σ_i Σ_t weight_i · objective_it          weight_i from `sample_weights`, one number per sample

The weights are made once per step from the lengths of *all* samples of *all* ranks; a micro-batch only ever sums. So
the loss and the gradients can't depend on how samples were cut into micro-batches, packed, or dealt to ranks.

    name       weight of each token of sample i   the global sum behind it
    token      1 / Σ_j n_j                        trained tokens of the step (DAPO, arXiv 2503.14476)
    sequence   1 / (S · n_i)                      samples of the step (GRPO, arXiv 2402.03300)
    constant   1 / (S · C)                        samples of the step; C is a setting (Dr.GRPO, arXiv 2503.20783)
    rollout    1 / (R · n_r(i))                   rollouts of the step; n_r counts all samples of a rollout: the mean
                                                  over episodes, however many rows each was cut into

n counts the trained tokens *before* any correction masks some: a mask that also shrank the denominator would make the
tokens that stay count for more the more are taken out. Samples without a trained token belong in none of the sums.

Where gradients are averaged over ranks after the backward pass (the default of FSDP and DDP), the loss must be
multiplied by the number of ranks, or the averaging switched to a sum.
"""

from typing import NamedTuple

import torch
from torch import Tensor

DENOMINATORS = ("token", "sequence", "constant", "rollout")


class Totals(NamedTuple):
    """What a step's denominators are made of; ranks that hold different samples add theirs up, field by field."""

    tokens: int
    samples: int
    rollouts: int = 0


def totals(lengths: Tensor, rollouts: int = 0) -> Totals:
    """Totals of these samples alone. lengths: int64 [samples]; rollouts: how many rollouts they belong to."""
    return Totals(int(lengths.sum()), int(lengths.numel()), rollouts)


def sample_weights(
    lengths: Tensor,
    denominator: str,
    *,
    constant_tokens: int = 0,
    rollout: Tensor | None = None,
    step: Totals | None = None,
) -> Tensor:
    """The weight of each token of sample i, so that the loss is a plain weighted sum over tokens.

    lengths: int64 [samples], trained tokens of every sample; all ≥ 1. Of the whole step, on all ranks; or of a part of
        it, with `step` the totals of the whole.
    denominator: one of DENOMINATORS (see the module's table).
    constant_tokens: for `constant`, the generation budget of a sample.
    rollout: for `rollout`, int64 [samples], equal for samples of the same rollout; all of a rollout's samples must be
        among these.

    Returns float64 [samples]. Raises ValueError on an unknown name, an empty sample or a missing setting.
    """
    if denominator not in DENOMINATORS:
        raise ValueError(f"unknown denominator {denominator!r}; known: {', '.join(DENOMINATORS)}")
    if lengths.ndim != 1 or lengths.numel() == 0 or int(lengths.min()) < 1:
        raise ValueError("lengths is [samples] with at least one trained token each; leave empty samples out before")
    n = lengths.to(torch.float64)
    if denominator == "rollout":
        if rollout is None or rollout.shape != lengths.shape:
            raise ValueError("denominator 'rollout' needs the rollout of every sample, int64 [samples]")
        _, dense = torch.unique(rollout, return_inverse=True)
        here = int(dense.max()) + 1
        tokens = torch.zeros(here, dtype=torch.float64, device=n.device).index_add_(0, dense, n)
        return 1.0 / ((step.rollouts if step else here) * tokens[dense])
    samples = step.samples if step else n.numel()
    if denominator == "token":
        return torch.ones_like(n) / (step.tokens if step else n.sum())
    if denominator == "sequence":
        return 1.0 / (samples * n)
    if constant_tokens < 1:
        raise ValueError("denominator 'constant' needs constant_tokens >= 1 (the generation budget of a sample)")
    return torch.full_like(n, 1.0 / (samples * constant_tokens))
