"""What a step trains: which samples, with which advantage and weight, in which rows of which rank.

A pure function of the samples and the settings, so that every rank makes the same batch and takes its own rows.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from core.algorithms.denominators import sample_weights
from core.episodes.samples import Sample
from core.training import credit
from core.training.context_part import part
from core.training.packing import Packed, pack, plan, refusal
from core.training.settings import TrainerSettings


@dataclass(frozen=True)
class Batch:
    """Everything of length [kept] is in the order of `kept`; bins hold places in it."""

    samples: Sequence[Sample]
    """All, refused ones too: their returns stand in baselines."""
    settings: TrainerSettings
    kept: list[int]
    """Places in `samples` of those that are trained on."""
    reasons: list[str | None]
    """[samples]: why one is not trained on."""
    advantages: list[float]
    """[kept]; for advantages per token: what is to be spread over the sample's tokens."""
    weights: list[float]
    """[kept], of each token in the loss"""
    bins: list[list[int]]
    """Micro-batches of this rank."""
    rank: int = 0
    world: int = 1
    shared: int = 0
    """So many of the first bins hold one sample each that lies on all ranks together (`core.training.context`)."""

    @property
    def refused(self) -> Counter[str]:
        """How many samples are left out for which reason."""
        return Counter(reason for reason in self.reasons if reason)

    @property
    def refused_tokens(self) -> Counter[str]:
        """How many sampled tokens these have."""
        tokens: Counter[str] = Counter()
        for sample, reason in zip(self.samples, self.reasons, strict=True):
            if reason:
                tokens[reason] += int(np.count_nonzero(sample.mask))
        return tokens

    @property
    def lengths(self) -> list[int]:
        """Tokens of every kept sample."""
        return [len(self.samples[i].ids) for i in self.kept]

    def rows(self) -> Iterator[Packed]:
        """This rank's micro-batches, each packed when it is asked for (while a GPU still works on the one before)."""
        multiple = self.settings.pack_multiple or 1
        for at, micro in enumerate(self.bins):
            whole = at >= self.shared
            row = pack(
                [self.samples[self.kept[i]] for i in micro],
                [self.advantages[i] for i in micro],
                [self.weights[i] for i in micro],
                multiple=multiple if whole else 1,
            )
            yield row if whole else part(row, self.rank, self.world, multiple=multiple)

    @property
    def tokens(self) -> float:
        """Of this rank's samples; of one that lies on all ranks, its share."""
        lengths = self.lengths
        own = sum(lengths[i] for micro in self.bins[self.shared :] for i in micro)
        return own + sum(lengths[i] for micro in self.bins[: self.shared] for i in micro) / self.world

    def advantages_with(self, rewards: Sequence[float]) -> list[float]:
        """Advantages [kept] when `rewards` [kept] are added to the returns; not a number where one of them is none."""
        if not torch.isfinite(torch.tensor(rewards)).all():
            return [float("nan")] * len(self.kept)
        extra: defaultdict[Any, float] = defaultdict(float)
        for i, reward in zip(self.kept, rewards, strict=True):
            extra[credit.unit(self.samples[i], self.settings)] += reward
        shaped = credit.shaped_returns(self.samples, self.settings)
        returns = [r + extra[credit.unit(s, self.settings)] for s, r in zip(self.samples, shaped, strict=True)]
        values = credit.sample_advantages(self.samples, self.settings, returns)
        return [values[i] for i in self.kept]


def make_batch(
    samples: Sequence[Sample], settings: TrainerSettings, *, vocab: int, rank: int, world: int,
    context_tokens: int | None = None,
) -> Batch:  # fmt: skip
    """Raises ValueError when a sample is there twice. `kept` is empty when there is nothing to train on.

    context_tokens: a longer sample is refused; None: none is.
    """
    credit.refuse_twins(samples)
    budget = settings.max_tokens_per_rank
    split = settings.context_parallel and world > 1
    excluded = credit.exclusions(samples, settings)
    reasons = [refusal(sample, context_tokens, vocab) or excluded[i] for i, sample in enumerate(samples)]
    if settings.dynamic_sampling:
        dull = credit.uniform_groups(samples, settings)
        reasons = [reason or dull.get(s.group_id) for s, reason in zip(samples, reasons, strict=True)]
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    if not kept:
        return Batch(samples, settings, [], reasons, [], [], [])
    values = credit.sample_advantages(samples, settings)
    trained = torch.tensor([np.count_nonzero(samples[i].mask) for i in kept])
    numbers: dict[Any, int] = {}
    rollouts = torch.tensor([numbers.setdefault(credit.rollout(samples[i]), len(numbers)) for i in kept])
    weights = sample_weights(
        trained, settings.denominator, constant_tokens=settings.constant_tokens, rollout=rollouts
    ).tolist()
    lengths = [len(samples[i].ids) for i in kept]
    shared = [[i] for i, n in enumerate(lengths) if split and n > budget]
    whole = [i for i, n in enumerate(lengths) if not split or n <= budget]
    bins = list(shared)
    if whole or not shared:
        planned = plan([lengths[i] for i in whole], budget_tokens=budget, ranks=world)[rank]
        bins += [[whole[i] for i in micro] for micro in planned]
    return Batch(samples, settings, kept, reasons, [values[i] for i in kept], weights, bins, rank, world, len(shared))


@dataclass(frozen=True)
class Prepared:
    """A batch whose rows are packed already, while the step before runs. It is a function of samples and settings
    alone: a step trained on it is the same, bit by bit, as one that is given the samples."""

    batch: Batch
    rows: list[Packed]
    """On the CPU; in pinned memory where they go to a GPU."""
    seconds: float
    """What making it took."""
    number: int = -1
    """In the order in which a group of ranks was told."""


class Rows:
    """Rows of a step on its device, each made when it is first asked for and kept: to be walked through again."""

    def __init__(self, packs: Iterator[Packed], device: torch.device) -> None:
        self._packs, self._device = packs, device
        self._made: list[Packed] = []

    def __iter__(self) -> Iterator[Packed]:
        yield from list(self._made)
        for packed in self._packs:
            self._made.append(packed.to(self._device))
            yield self._made[-1]

    @property
    def tokens(self) -> int:
        """Of the rows made so far."""
        return sum(packed.tokens for packed in self._made)
