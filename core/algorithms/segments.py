"""Packed rows: many sequences behind each other in one row of [tokens], each token with the number of its sequence.

What holds in every function of this room that takes `mask` and `sequence`:
- A token outside the mask may hold anything, NaN and infinity included: its value is replaced before the first
  operation, so neither results nor gradients can see it (NaN · 0 is NaN; a value that was replaced is not).
- `mask = None` means that every token is trained, as after `core.training.packing`, which picks the trained ones.
- Sequences are found by number, never by position; within a sequence, tokens stand in the order of the text.
- A trained token whose number is not finite is not hidden: `screen` takes such tokens out *and counts them*.
"""

import torch
from torch import Tensor


def masked(values: Tensor, mask: Tensor | None, fill: float = 0.0) -> Tensor:
    """`values` [tokens] with `fill` outside the mask (bool [tokens]); no gradient reaches the tokens outside."""
    if mask is None:
        return values
    if mask.shape != values.shape or mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool {tuple(values.shape)}, got {mask.dtype} {tuple(mask.shape)}")
    return torch.where(mask, values, torch.full((), fill, dtype=values.dtype, device=values.device))


def sequence_of(lengths: Tensor) -> Tensor:
    """Sequence numbers int64 [tokens] of a packed row. lengths: int64 [sequences], tokens of each; zeros allowed."""
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


def segment_sum(values: Tensor, sequence: Tensor, sequences: int) -> Tensor:
    """Σ over each sequence. values: floating [tokens]; sequence: int64 [tokens] in 0..sequences-1. [sequences]."""
    return torch.zeros(sequences, dtype=values.dtype, device=values.device).index_add(0, sequence, values)


def segment_extreme(values: Tensor, sequence: Tensor, sequences: int, *, largest: bool) -> Tensor:
    """Largest (or smallest) value of each sequence; -inf (inf) where a sequence has no token. [sequences]."""
    start = -torch.inf if largest else torch.inf
    out = torch.full((sequences,), start, dtype=values.dtype, device=values.device)
    return out.scatter_reduce(0, sequence, values, "amax" if largest else "amin")


def count(sequence: Tensor, sequences: int, mask: Tensor | None = None) -> Tensor:
    """Trained tokens of each sequence, int64 [sequences]."""
    ones = torch.ones_like(sequence) if mask is None else mask.to(torch.int64)
    return torch.zeros(sequences, dtype=torch.int64, device=sequence.device).index_add(0, sequence, ones)


def sequences_in(sequence: Tensor) -> int:
    """How many numbers a row of sequence ids needs: the largest + 1; 0 for no token."""
    return int(sequence.max()) + 1 if sequence.numel() else 0


def screen(mask: Tensor, **columns: Tensor) -> tuple[Tensor, dict[str, int]]:
    """Take trained tokens with a number that is not finite out of the mask, and count them by column.

    mask: bool [tokens]. columns: floating [tokens] each, such as `logprobs`, `behaviour`.
    Returns (mask bool [tokens] of the tokens that are left, {column: tokens that were taken out because of it}); a
    token that two columns speak against counts for the first of them.
    """
    counts = {}
    for name, values in columns.items():
        broken = mask & ~torch.isfinite(values)
        counts[name] = int(broken.sum())
        mask = mask & ~broken
    return mask, counts


def reverse_scan(values: Tensor, sequence: Tensor, mask: Tensor | None, decay: float) -> Tensor:
    """y_t = v_t + decay · y_next, where next is the next *trained* token of the same sequence; 0 outside the mask.

    A masked token (the text of a tool between two turns) is neither an end nor a step: the sum goes on behind it and is
    not decayed for it. By doubling, in log2(tokens) vectorised rounds: after round k, y_t holds the first 2^k terms.

    values: floating [tokens]; sequence: int64 [tokens]; decay in [0, 1]. Returns float64 [tokens].
    """
    values = masked(values, mask).to(torch.float64)
    at = torch.arange(len(values), device=values.device) if mask is None else mask.nonzero()[:, 0]
    at = at[torch.argsort(sequence[at], stable=True)]
    y, ids = values[at], sequence[at]
    longest = int(torch.bincount(ids).max()) if len(ids) else 0
    step, factor = 1, float(decay)
    while step < longest and factor > 0.0:
        same = ids[step:] == ids[:-step]
        y = y + factor * torch.nn.functional.pad(y[step:] * same, (0, step))
        step, factor = 2 * step, factor * factor
    return torch.zeros_like(values).index_put((at,), y)
