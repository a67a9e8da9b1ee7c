"""Log-probs and entropies of the head, chunk by chunk: never a [tokens, vocab] tensor for all tokens.

With a vocabulary of 152k, the logits of 16k tokens are 10 GB in float32, three times that with their softmax and
gradient. Here the forward pass walks over chunks and keeps two numbers per token; the backward pass makes each chunk's
logits again. The gradient is written out by hand, with z the logits, p their softmax, y the target:

    log p_y = z_y - logsumexp z          ∂ log p_y / ∂z_v = [v = y] - p_v
    H = -Σ p log p                        ∂ H / ∂z_v      = -p_v (log p_v + H)

Softmax and sums run in float32 whatever the dtype of the hidden states.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK_TOKENS = 1024
"""Rows of logits that exist at once; 1024 x 152k float32 is 0.6 GB."""


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, want_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropies = torch.zeros_like(logprobs)
        lse_all = torch.empty_like(logprobs)
        for at in range(0, hidden.shape[0], chunk):
            rows = slice(at, at + chunk)
            z = (hidden[rows] @ weight.t()).float()
            lse = torch.logsumexp(z, dim=-1)
            logprobs[rows] = z.gather(1, targets[rows, None])[:, 0] - lse
            if want_entropy:
                entropies[rows] = lse - (torch.softmax(z, dim=-1) * z).sum(-1)
            lse_all[rows] = lse
        ctx.save_for_backward(hidden, weight, targets, lse_all, entropies)
        ctx.chunk = chunk
        ctx.want_entropy = want_entropy
        if not want_entropy:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, lse_all, entropies = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if need_weight else None
        for at in range(0, hidden.shape[0], ctx.chunk):
            rows = slice(at, at + ctx.chunk)
            logp = (hidden[rows] @ weight.t()).float() - lse_all[rows, None]
            p = logp.exp()
            grad_z = p * -grad_logprobs[rows, None]
            if ctx.want_entropy:
                grad_z -= p * (logp + entropies[rows, None]) * grad_entropies[rows, None]
            grad_z.scatter_add_(1, targets[rows, None], grad_logprobs[rows, None])
            grad_z = grad_z.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad_z @ weight
            if grad_weight is not None:
                grad_weight += grad_z.t() @ hidden[rows]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


def chunked_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk_tokens: int = CHUNK_TOKENS, want_entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-prob of `targets` and entropy of the distribution at every position, through the head `hidden @ weightᵀ`.

    hidden: floating [tokens, width]. weight: same dtype [vocab, width]. targets: int64 [tokens], in [0, vocab).
    want_entropy: False returns zeros for the entropies, without gradient, and is cheaper.

    Returns (logprobs float32 [tokens], entropies float32 [tokens], in nats), both with gradient.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden [tokens, width] and weight [vocab, width], got {hidden.shape} and {weight.shape}")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets is [tokens] = [{hidden.shape[0]}], got {tuple(targets.shape)}")
    return _ChunkedHead.apply(hidden, weight, targets, chunk_tokens, want_entropy)
