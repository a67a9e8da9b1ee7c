"""Context parallelism: a sequence that is longer than one rank's budget lies on all ranks together.

    tokens      0    1    2    3    4    5    6    7     2 · ranks chunks of one size, the end filled up
    rank        0    1    2    3    3    2    1    0     each rank has an early and a late one: equal work when causal

Everything but attention goes token by token and needs no other rank. In attention a rank gathers the keys and values of
all ranks, layer by layer, and its queries look at those up to their own place; the backward pass gathers once more
rather than keep them, and gives each rank the sum over ranks of its keys' and values' gradients, in float32. That is
exact, and simpler than passing them round in a ring; what it costs is keys and values of one layer in whole.

A position that predicts a token of the next chunk stays with its rank: what it predicts is in its columns. Losses that
look at whole samples can't be split (`core.training.combinations`). All ranks take part in every split row, in the same
order. Filling stands behind every real token, so that nothing real looks at it, and nothing in it is trained.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 gave these new names and warns of the old ones
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Split:
    """Which part of one sequence this rank has."""

    rank: int
    world: int
    chunk: int
    """Tokens; a rank has two chunks, the sequence 2 · world."""

    @property
    def tokens(self) -> int:
        """Of the sequence, filling included."""
        return 2 * self.world * self.chunk

    @property
    def chunks(self) -> tuple[int, int]:
        """Numbers of this rank's chunks."""
        return self.rank, 2 * self.world - 1 - self.rank

    def ends(self) -> tuple[int, int]:
        """How many of the sequence's tokens the queries of each chunk look at, the last of them."""
        first, second = self.chunks
        return (first + 1) * self.chunk, (second + 1) * self.chunk

    def positions(self) -> Tensor:
        """int64 [2 · chunk], where this rank's tokens stand in the sequence."""
        return torch.cat([torch.arange(n * self.chunk, (n + 1) * self.chunk) for n in self.chunks])

    def gather(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the whole sequence, [tokens, kv_heads, dim], from those of every rank. Collective."""
        mine = torch.stack([k, v])
        parts = mine.new_empty((self.world, *mine.shape))
        _all_gather(parts.flatten(0, 1), mine)
        early, late = parts.unflatten(2, (2, self.chunk)).unbind(2)  # [ranks, 2, chunk, heads, dim] each
        whole = torch.cat([early, late.flip(0)]).transpose(0, 1).flatten(1, 2)
        return whole[0], whole[1]

    def scatter(self, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        """The reverse, summed over ranks: this rank's part of gradients for the whole sequence, in their dtype."""
        whole = torch.stack([dk, dv]).unflatten(1, (2 * self.world, self.chunk))
        early, late = whole[:, : self.world], whole[:, self.world :].flip(1)
        parts = torch.stack([early, late], 2).transpose(0, 1).flatten(2, 3).contiguous()  # [ranks, 2, 2 · chunk, ...]
        mine = parts.new_empty(parts.shape[1:])
        _reduce_scatter(mine, parts.flatten(0, 1))
        return mine[0], mine[1]


Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(q, k, v) of one sequence, the queries being its last tokens -> (out, lse float32 [heads, queries])"""
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(grad, q, k, v, out, lse) -> (dq, dk, dv)"""


def attention(split: Split, forward: Forward, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of this rank's tokens: q [2 · chunk, heads, dim], k and v [2 · chunk, kv_heads, dim]. Collective."""
    keys, values = split.gather(k, v)
    found = [
        forward(mine, keys[:end], values[:end]) for mine, end in zip(q.split(split.chunk), split.ends(), strict=True)
    ]
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found], dim=1)


def attention_backward(
    split: Split, backward: Backward, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for this rank's q, k and v. Collective."""
    keys, values = split.gather(k, v)
    dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (keys, values))
    dqs = []
    halves = zip(
        *(x.split(split.chunk) for x in (grad, q, out)), lse.split(split.chunk, dim=1), split.ends(), strict=True
    )
    for grad_half, q_half, out_half, lse_half, end in halves:
        dq, *parts = backward(grad_half, q_half, keys[:end], values[:end], out_half, lse_half.contiguous())
        dqs.append(dq)
        dk[:end] += parts[0]
        dv[:end] += parts[1]
    dk, dv = split.scatter(dk, dv)
    return torch.cat(dqs).to(q.dtype), dk.to(k.dtype, copy=True), dv.to(v.dtype, copy=True)  # parts of one tensor
