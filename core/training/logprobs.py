"""Log-probs and entropies of the head, chunk by chunk: never a [tokens, vocab] tensor for all tokens.

With a vocabulary of 152k, the logits of 16k tokens are 10 GB in float32, three times that with their softmax and
gradient. Here a chunk of logits lives at a time. The gradient is written out by hand, with z the logits, p their
softmax, y the target:

    log p_y = z_y - logsumexp z          ∂ log p_y / ∂z_v = [v = y] - p_v
    H = -Σ p log p                        ∂ H / ∂z_v      = -p_v (log p_v + H)

Three ways to reach the same numbers, by what they cost beside the two products of the backward pass:

    `fused_loss`            one product. The loss of a token depends on that token's log-prob and entropy alone, so the
                            gradient is known as soon as a chunk's statistics are, and both are made in one pass.
    `chunked_logprobs`      two: any loss; the backward pass makes each chunk's logits again.
      with `cache_gib`      in between: as many chunks of logits as fit stay, in the compute type, until their gradient
                            takes their place.

Logits are in the compute type (as they are in the engines), softmax and sums run in float32 whatever it is, and the
weight's gradient is summed over chunks in float32. At a temperature T, z above is the logits times 1 / T (`scale`), and
the gradient for the logits has the same factor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CHUNK_TOKENS = 1024
"""Rows of logits that exist at once; 1024 x 152k is 0.3 GB in bfloat16, 0.6 GB in float32."""

TokenLoss = Callable[[Tensor, Tensor, slice], Tensor]
"""(log-probs, entropies, rows) of a chunk -> the summed loss of these rows, a scalar."""


def _kernels(z: Tensor) -> Any:
    if not z.is_cuda:
        return None
    from core.training import head_kernels

    return head_kernels


def chunks(tokens: int, most: int) -> list[slice]:
    """Cuts `tokens` rows into the fewest chunks of at most `most`, all of about the same size (multiples of 64)."""
    if not tokens:
        return []
    count = -(-tokens // most)
    even = -(-tokens // count)
    size = min(most, -(-even // 64) * 64)
    return [slice(at, min(at + size, tokens)) for at in range(0, tokens, size)]


def _statistics(
    z: Tensor, targets: Tensor, logprobs: Tensor, lse: Tensor, entropies: Tensor, want_entropy: bool, scale: float
) -> None:
    kernels = _kernels(z)
    if kernels is not None:
        kernels.statistics(z, targets, logprobs, lse, entropies, want_entropy, scale)
        return
    wide = z.float() * scale
    top = wide.amax(-1, keepdim=True)
    wide -= top  # a tensor of its own
    e = wide.exp()
    total = e.sum(-1)
    log_total = total.log()
    lse.copy_(top[:, 0] + log_total)
    logprobs.copy_(wide.gather(1, targets[:, None])[:, 0] - log_total)
    if want_entropy:  # not -Σ p log p: the rounding of one logarithm would be in every term
        entropies.copy_(log_total - (e * wide).sum(-1) / total)


def _gradient_(z: Tensor, targets: Tensor, lse: Tensor, entropies: Tensor, grad_logprobs: Tensor,
               grad_entropies: Tensor | None, scale: float) -> Tensor:  # fmt: skip
    """The gradient for `z`, in its dtype; its storage may be used up for it."""
    kernels = _kernels(z)
    if kernels is not None:
        return kernels.gradient_(z, targets, lse, entropies, grad_logprobs, grad_entropies, scale)
    logp = z.float() * scale - lse[:, None]
    out = logp.exp()
    if grad_entropies is None:
        out *= -grad_logprobs[:, None]
    else:
        out *= -(grad_logprobs[:, None] + grad_entropies[:, None] * (logp + entropies[:, None]))
    out.scatter_add_(1, targets[:, None], grad_logprobs[:, None])
    return (out * scale).to(z.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, with `total` in float32 whatever the others are."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


class _Gradients:
    """Gradients of hidden states and weight, chunk by chunk."""

    def __init__(self, hidden: Tensor, weight: Tensor, need_hidden: bool, need_weight: bool) -> None:
        self._hidden, self._weight = hidden, weight
        self.hidden = torch.empty_like(hidden) if need_hidden else None
        self.weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if need_weight else None

    def add(self, rows: slice, grad_z: Tensor) -> None:
        if self.hidden is not None:
            torch.mm(grad_z, self._weight, out=self.hidden[rows])
        if self.weight is not None:
            _add_product(self.weight, grad_z.t(), self._hidden[rows])


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, want_entropy: bool, cache_bytes: int,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropies = torch.zeros_like(logprobs)
        lse = torch.empty_like(logprobs)
        kept: list[Tensor] = []
        for rows in chunks(hidden.shape[0], chunk):
            z = hidden[rows] @ weight.t()
            _statistics(z, targets[rows], logprobs[rows], lse[rows], entropies[rows], want_entropy, scale)
            cache_bytes -= z.nbytes
            if cache_bytes >= 0:
                kept.append(z)
        ctx.save_for_backward(hidden, weight, targets, lse, entropies)
        ctx.kept, ctx.chunk, ctx.want_entropy, ctx.scale = kept, chunk, want_entropy, scale
        if not want_entropy:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, lse, entropies = ctx.saved_tensors
        out = _Gradients(hidden, weight, *ctx.needs_input_grad[:2])
        kept, ctx.kept = ctx.kept, []  # a second backward pass makes all logits again
        for i, rows in enumerate(chunks(hidden.shape[0], ctx.chunk)):
            z = kept[i] if i < len(kept) else hidden[rows] @ weight.t()
            if i < len(kept):
                kept[i] = z.new_empty(0)
            ge = grad_entropies[rows] if ctx.want_entropy else None
            gl = grad_logprobs[rows]
            out.add(rows, _gradient_(z, targets[rows], lse[rows], entropies[rows], gl, ge, ctx.scale))
            del z
        grad_weight = None if out.weight is None else out.weight.to(weight.dtype)
        return out.hidden, grad_weight, None, None, None, None, None


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, token_loss: TokenLoss, chunk: int,
        want_entropy: bool, scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropies = torch.zeros_like(logprobs)
        lse = torch.empty_like(logprobs)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        out = _Gradients(hidden, weight, *ctx.needs_input_grad[:2])
        for rows in chunks(hidden.shape[0], chunk):
            z = hidden[rows] @ weight.t()
            _statistics(z, targets[rows], logprobs[rows], lse[rows], entropies[rows], want_entropy, scale)
            with torch.enable_grad():
                lp = logprobs[rows].detach().requires_grad_()
                ent = entropies[rows].detach().requires_grad_(want_entropy)
                part = token_loss(lp, ent, rows)
                gl, ge = torch.autograd.grad(
                    part, (lp, ent) if want_entropy else (lp, lp), allow_unused=True, materialize_grads=True
                )
            loss += part.detach()
            slope = ge if want_entropy else None
            out.add(rows, _gradient_(z, targets[rows], lse[rows], entropies[rows], gl, slope, scale))
            del z
        ctx.save_for_backward(out.hidden, None if out.weight is None else out.weight.to(weight.dtype))
        ctx.mark_non_differentiable(logprobs, entropies)
        return loss, logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        grads = [None if g is None else g * grad_loss.to(g.dtype) for g in ctx.saved_tensors]
        return grads[0], grads[1], None, None, None, None, None


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, chunk_tokens: int, temperature: float) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden [tokens, width] and weight [vocab, width], got {hidden.shape} and {weight.shape}")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets is [tokens] = [{hidden.shape[0]}], got {tuple(targets.shape)}")
    if hidden.dtype != weight.dtype:
        raise ValueError(f"hidden is {hidden.dtype} and weight {weight.dtype}: they must be of one type")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    want_entropy: bool = True,
    cache_gib: float = 0.0,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Log-prob of `targets` and entropy of the distribution at every position, through the head `hidden @ weightᵀ`.

    hidden: floating [tokens, width]. weight: same dtype [vocab, width]. targets: int64 [tokens], in [0, vocab).
    want_entropy: False returns zeros for the entropies, without gradient, and is cheaper.
    cache_gib: logits of so many GiB may be kept for the backward pass, instead of making them again.
    temperature: that of the distribution, softmax(logits / temperature).

    Returns (logprobs float32 [tokens], entropies float32 [tokens], in nats), both with gradient.
    Raises ValueError for shapes or types that don't fit.
    """
    _check(hidden, weight, targets, chunk_tokens, temperature)
    cache_bytes = int(cache_gib * 2**30) if torch.is_grad_enabled() else 0
    return _ChunkedHead.apply(hidden, weight, targets, chunk_tokens, want_entropy, cache_bytes, 1 / temperature)


def fused_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    token_loss: TokenLoss,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    want_entropy: bool = True,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss Σ token_loss over all rows, its gradients made in the same pass that makes the log-probs.

    token_loss: called once for every chunk with (log-probs float32 [rows], entropies float32 [rows], which rows); its
        answer, a scalar, may depend on these rows alone. Called under grad mode; columns of its own are constants.
    Other arguments as in `chunked_logprobs`.

    Returns (loss float32 scalar with gradient for hidden and weight, logprobs, entropies: float32 [tokens], without).
    """
    _check(hidden, weight, targets, chunk_tokens, temperature)
    return _FusedLoss.apply(hidden, weight, targets, token_loss, chunk_tokens, want_entropy, 1 / temperature)
