"""Advantages that need log-probs or values of the whole step before its first gradient.

    kl_in = "reward"                  the KL to the reference is taken from the return (turn, group) or from each
                                      token's reward (reinforce_plus_plus, gae)
    advantage = reinforce_plus_plus   return-to-go of every token; with scale = "batch" whitened over the step's tokens
    advantage = gae                   the critic's values; whitened likewise

One pass without gradient over the micro-batches, in the same order on every rank, then sums over ranks: the result does
not depend on how the step was cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from core.algorithms.kl import kl_reward
from core.algorithms.segments import segment_sum
from core.algorithms.token_advantages import Moments, gae, merge, moments, outcome_rewards, token_returns, whiten
from core.training.packing import Packed
from core.training.settings import TrainerSettings


@dataclass
class Row:
    """A micro-batch with what the pass before the gradient found; columns are [trained tokens]."""

    packed: Packed
    """Its `advantages` are the samples' returns, less their baseline, until they have been replaced."""
    reference: Tensor | None = None
    """Log-probs of the reference policy."""
    rewards: Tensor | None = None
    """-c_kl · k1 of every token."""
    values: Tensor | None = None
    """Of the critic, before the update."""
    targets: Tensor | None = None
    """What the critic learns."""


def needs_pass(settings: TrainerSettings) -> bool:
    """True when the step must be looked at as a whole before the first gradient."""
    return settings.kl_in == "reward" or settings.advantage in ("reinforce_plus_plus", "gae")


def kl_rewards(logprobs: Tensor, reference: Tensor | None, settings: TrainerSettings) -> Tensor:
    """-c_kl · k1 of every token, float64 [trained tokens]; both [trained tokens]."""
    assert reference is not None, "kl_in = 'reward' without a reference"
    return kl_reward(logprobs, reference, settings.kl_coef, ceiling=settings.kl_ceiling).double()


def sums_by_sample(row: Row) -> Tensor:
    """Σ rewards of every sequence of the row, float64 [sequences]; of a split one, this rank's part. A token of weight
    0 stands in for a rank that has none (`core.training.context_part`) and belongs to no sample."""
    assert row.rewards is not None
    rewards = torch.where(row.packed.weights > 0, row.rewards, torch.zeros_like(row.rewards))
    return segment_sum(rewards, row.packed.sequence, len(row.packed.lengths))


def with_advantages(row: Row, advantages: Sequence[float]) -> Row:
    """The row with one advantage per sample; sequences behind the samples (filling) have 0."""
    p = row.packed
    by_sequence = torch.zeros(len(p.lengths), dtype=torch.float32, device=p.advantages.device)
    by_sequence[: len(advantages)] = torch.tensor(advantages, dtype=torch.float32, device=p.advantages.device)
    return replace(row, packed=replace(p, advantages=by_sequence[p.sequence]))


def spread(rows: list[Row], settings: TrainerSettings, world: int) -> list[Row]:
    """Rows with advantages per token, and targets where there are values. Collective when world > 1."""
    found = []
    for row in rows:
        p = row.packed
        real = p.weights > 0
        rewards = _rewards(row)
        if row.values is None:
            advantages = token_returns(rewards, p.sequence, gamma=settings.token_gamma)
        else:
            advantages, row.targets = gae(
                rewards, row.values, p.sequence, gamma=settings.token_gamma, lam=settings.gae_lambda
            )
        found.append((advantages, real))
    if settings.scale == "batch":
        device = rows[0].packed.weights.device
        batch = _merged(merge([moments(a, real) for a, real in found]), world, device)
        found = [(whiten(a, batch, mask=real), real) for a, real in found]
    return [
        replace(row, packed=replace(row.packed, advantages=a.float())) for row, (a, _) in zip(rows, found, strict=True)
    ]


def _rewards(row: Row) -> Tensor:
    """float64 [trained tokens]: a sample's return on its last token, and what every token costs."""
    p = row.packed
    sequences = len(p.lengths)
    returns = torch.zeros(sequences, dtype=torch.float64, device=p.advantages.device)
    returns[p.sequence] = p.advantages.double()  # equal within a sample
    rewards = outcome_rewards(returns, p.sequence)
    return rewards if row.rewards is None else rewards + row.rewards


def _merged(mine: Moments, world: int, device: torch.device) -> Moments:
    if world == 1:
        return mine
    parts = [torch.zeros(5, dtype=torch.float64, device=device) for _ in range(world)]
    dist.all_gather(parts, torch.tensor(mine, dtype=torch.float64, device=device))
    return merge([Moments(int(part[0]), *part[1:].tolist()) for part in parts])
