"""Packing: samples become rows without padding, several sequences behind each other in one row.

    samples   A (5 tokens)   B (3 tokens)
    ids       A0 A1 A2 A3 A4 B0 B1 B2
    position   0  1  2  3  4  0  1  2      restarts with every sequence
    lengths    5, 3                        attention never crosses the border (`core.training.attention`)
    picked           1  2  3     6         positions whose next token is trained; targets are A2 A3 A4 and B2

The plan is a pure function of the samples' lengths: every rank computes the same one and takes its own part. All ranks
get the same number of micro-batches, since each micro-batch is a round of collectives; where samples don't suffice, one
is empty (a single token of weight 0). The budget bounds what is packed together: a sample that is longer has a row to
itself.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.episodes.samples import Sample
from core.training.context import Split

REFUSALS = (
    "longer_than_context", "empty_completion", "first_token_trained", "non_finite", "columns_differ", "unknown_token",
)  # fmt: skip
"""Why a sample is not trained on: more tokens than the policy's context has; no trained token; a mask on token 0, which
nothing predicts; a log-prob or return that is not a number; arrays of different lengths; an id outside the vocabulary,
which on a GPU would end the process."""


def refusal(sample: Sample, context_tokens: int | None = None, vocab: int | None = None) -> str | None:
    """Which of REFUSALS holds for `sample`, or None when it can be trained on. context_tokens: most that one can have;
    vocab: ids are below it; None: any."""
    n = len(sample.ids)
    if not (len(sample.mask) == len(sample.logprobs) == len(sample.versions) == n):
        return "columns_differ"
    if not np.isfinite(sample.ret) or not np.isfinite(sample.logprobs[sample.mask > 0]).all():
        return "non_finite"
    if not sample.mask.any():
        return "empty_completion"
    if sample.mask[0]:
        return "first_token_trained"
    if context_tokens is not None and n > context_tokens:
        return "longer_than_context"
    if int(sample.ids.min()) < 0 or (vocab is not None and int(sample.ids.max()) >= vocab):
        return "unknown_token"
    return None


def longest_sample(config: Any, context_tokens: int = 0) -> int | None:
    """Most tokens of a sample: what a policy can have read and written. config: the model's own, whose limit holds
    where `context_tokens` is 0; None where it names none. With scaled positions an engine may go beyond that limit by
    a factor, so it is not held against a sample."""
    if context_tokens:
        return context_tokens
    limit = getattr(config, "max_position_embeddings", None)
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    return int(limit * max(1.0, factor or 1.0)) if isinstance(limit, int) and limit > 0 else None


def plan(
    lengths: Sequence[int], *, budget_tokens: int, ranks: int, quadratic_tokens: int = 8192
) -> list[list[list[int]]]:
    """Which samples go into which micro-batch: plan[rank][micro-batch] lists sample indices.

    Longest first, each into the micro-batch with the least work that still has room; the number of micro-batches is the
    smallest that is a multiple of `ranks` and holds everything. What is longer than the budget is alone in one. Work of
    a sequence of n tokens is n·(1 + n/quadratic): attention costs as much as the rest at about `quadratic_tokens`.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    alone = sum(n > budget_tokens for n in lengths)
    packed = sum(n for n in lengths if n <= budget_tokens)
    per_rank = max(1, -(-(alone + -(-packed // budget_tokens)) // ranks))
    while True:
        bins = _fill(order, lengths, budget_tokens, ranks * per_rank, quadratic_tokens)
        if bins is not None:
            break
        per_rank += 1
    # Ranks meet in every collective, so their n-th micro-batches should cost the same: the heaviest side by side, and
    # in each such round the heaviest to the rank with the least so far.
    work = [sum(_work(lengths[i], quadratic_tokens) for i in b) for b in bins]
    by_work = sorted(range(len(bins)), key=lambda b: -work[b])
    out: list[list[list[int]]] = [[] for _ in range(ranks)]
    total = [0.0] * ranks
    for at in range(0, len(bins), ranks):
        for rank, b in zip(sorted(range(ranks), key=total.__getitem__), by_work[at : at + ranks], strict=True):
            out[rank].append(bins[b])
            total[rank] += work[b]
    return out


def _work(n: int, quadratic_tokens: int) -> float:
    return n * (1.0 + n / quadratic_tokens)


def _fill(
    order: list[int], lengths: Sequence[int], budget: int, count: int, quadratic_tokens: int
) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(count)]
    room = [budget] * count
    heap = [(0.0, b) for b in range(count)]
    for i in order:
        full = []
        while heap and bins[heap[0][1]] and room[heap[0][1]] < lengths[i]:
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        work, b = heapq.heappop(heap)
        bins[b].append(i)
        room[b] -= lengths[i]
        heapq.heappush(heap, (work + _work(lengths[i], quadratic_tokens), b))
        for item in full:
            heapq.heappush(heap, item)
    return bins


@dataclass(frozen=True)
class Packed:
    """One micro-batch. `picked`, and everything after it, is [trained tokens]."""

    ids: Tensor
    """int64 [tokens]"""
    position_ids: Tensor
    """int64 [tokens], restart at 0 with every sequence"""
    cu_seqlens: Tensor
    """int32 [sequences + 1], where each sequence starts, and the end"""
    lengths: tuple[int, ...]
    """tokens of every sequence"""
    picked: Tensor
    """int64, positions that predict a trained token"""
    targets: Tensor
    """int64, the tokens that they predict"""
    weights: Tensor
    """float32, share of each token in the loss (`objectives.sample_weights`)"""
    advantages: Tensor
    """float32"""
    behaviour: Tensor
    """float32, log-probs of the policy that sampled"""
    versions: Tensor
    """int32, versions of that policy"""
    sequence: Tensor
    """int64, which of the row's sequences each trained token belongs to"""
    split: Split | None = None
    """Of a part of a sequence, that is (`core.training.context`)."""

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> "Packed":
        """On `device`; from pinned memory without waiting for what the GPU has to do before."""
        cuda = torch.device(device).type == "cuda"
        return self._each(lambda tensor: tensor.to(device, non_blocking=cuda and tensor.is_pinned()))

    def pinned(self) -> "Packed":
        """In memory that a GPU reads by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Packed":
        tensors = {name: change(value) for name, value in self.__dict__.items() if isinstance(value, Tensor)}
        return Packed(**tensors, lengths=self.lengths, split=self.split)


_FILLING = 256
"""Longest sequence of filling: its attention must not cost what it saves."""


def pack(
    samples: Sequence[Sample], advantages: Sequence[float], weights: Sequence[float], *, multiple: int = 1
) -> Packed:
    """The samples behind each other in one row. `advantages` and `weights` are one number per sample. No samples: one
    token of weight 0, so that a rank without work takes part in the collectives.

    multiple: the row is filled up to a multiple of so many tokens with short sequences in which nothing is trained.
    """
    ids, masks = [s.ids for s in samples], [s.mask for s in samples]
    logprobs, versions = [s.logprobs for s in samples], [s.versions for s in samples]
    advantages, weights = list(advantages), list(weights)
    if not samples:
        ids, masks, logprobs = [np.zeros(2, np.int32)], [np.array([0, 1], np.uint8)], [np.zeros(2, np.float32)]
        versions, advantages, weights = [np.full(2, -1, np.int32)], [0.0], [0.0]
    missing = -sum(len(row) for row in ids) % multiple
    while missing > 0:
        n = min(missing, _FILLING)
        ids.append(np.zeros(n, np.int32))
        masks.append(np.zeros(n, np.uint8))
        logprobs.append(np.zeros(n, np.float32))
        versions.append(np.full(n, -1, np.int32))
        advantages.append(0.0)
        weights.append(0.0)
        missing -= n
    return _pack_columns(ids, masks, logprobs, versions, advantages, weights)


def _pack_columns(
    ids: list[np.ndarray],
    masks: list[np.ndarray],
    logprobs: list[np.ndarray],
    versions: list[np.ndarray],
    advantages: Sequence[float],
    weights: Sequence[float],
) -> Packed:
    lengths = [len(row) for row in ids]
    all_ids = np.concatenate(ids)
    at = np.flatnonzero(np.concatenate(masks))
    trained = [int(np.count_nonzero(mask)) for mask in masks]
    return Packed(
        ids=torch.from_numpy(all_ids.astype(np.int64)),
        position_ids=torch.from_numpy(np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])),
        cu_seqlens=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
        lengths=tuple(lengths),
        picked=torch.from_numpy(at - 1),
        targets=torch.from_numpy(all_ids[at].astype(np.int64)),
        weights=torch.from_numpy(np.repeat(np.asarray(weights, np.float64), trained).astype(np.float32)),
        advantages=torch.from_numpy(np.repeat(np.asarray(advantages, np.float32), trained)),
        behaviour=torch.from_numpy(np.concatenate(logprobs)[at].astype(np.float32)),
        versions=torch.from_numpy(np.concatenate(versions)[at].astype(np.int32)),
        sequence=torch.from_numpy(np.repeat(np.arange(len(ids), dtype=np.int64), trained)),
    )
