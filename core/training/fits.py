"""Can the learner hold this model? Asked when one is loaded, of the model itself and not of its name.

The learner makes log-probs from the body's hidden states and the head's weight, and lays many sequences into one row. A
model whose logits are more than that product (a bias, a scale, a soft cap), or whose blocks lose the keywords that keep
sequences apart, would train without an error, on wrong numbers. So one block of each kind is run: once with two
sequences in a row, once with each alone, and the model's own logits are held against the product.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from core.training.attention import attention_kwargs

LENGTHS = (5, 3)
"""Tokens of the two sequences."""
TOLERANCE = 1e-4
"""Of the largest number: float32 on other paths differs by some 1e-6."""


@torch.no_grad()
def misfit(lm: Any) -> str | None:
    """Why a causal LM in float32 can't be trained, or None. Models in 4 bits are not looked at."""
    if getattr(lm, "is_quantized", False):
        return None
    attention = float(getattr(lm.config, "attention_dropout", 0.0) or 0.0)
    if attention > 0 or any(isinstance(m, nn.Dropout) and m.p > 0 for m in lm.modules()):
        return "its config has a dropout, with which no two forward passes are the same policy: set it to 0"
    training = lm.training
    lm.eval()
    try:
        for block in _kinds(lm.model.layers):
            with _alone(lm, block):
                if why := _apart(lm) or _product(lm):
                    return why
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:  # shapes that don't go together
        return " ".join(str(error).split())[:300]
    finally:
        lm.train(training)
    return None


def _kinds(blocks: nn.ModuleList) -> list[nn.Module]:
    """The first block of each kind: blocks of the same classes run the same code."""
    return list({tuple(type(m).__name__ for m in block.modules()): block for block in reversed(blocks)}.values())


@contextmanager
def _alone(lm: Any, block: nn.Module) -> Iterator[None]:
    """The model with this one block."""
    blocks = lm.model.layers
    lm.model.layers = nn.ModuleList([block])
    try:
        yield
    finally:
        lm.model.layers = blocks


def _row(lm: Any, length: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + length, device=lm.device)[None] % lm.config.vocab_size


def _apart(lm: Any) -> str | None:
    """Sequences of a row must not see each other."""
    starts = [0, *accumulate(LENGTHS)]
    alone = [
        lm.model(input_ids=_row(lm, n, at), use_cache=False).last_hidden_state[0]
        for n, at in zip(LENGTHS, starts, strict=False)
    ]
    packed = lm.model(
        input_ids=_row(lm, starts[-1]),
        position_ids=torch.cat([_row_positions(lm, n) for n in LENGTHS])[None],
        use_cache=False,
        **attention_kwargs(LENGTHS, torch.tensor(starts, dtype=torch.int32, device=lm.device), torch.float32),
    ).last_hidden_state[0]
    if not torch.isfinite(torch.cat(alone)).all():
        return "its hidden states are not finite, so some of its weights are not"
    if _close(packed, torch.cat(alone)):
        return None
    return "its blocks don't keep the sequences of a packed row apart (they lose the attention's keywords)"


def _row_positions(lm: Any, length: int) -> Tensor:
    return torch.arange(length, device=lm.device)


def _product(lm: Any) -> str | None:
    """Logits must be hidden states times the head's weight, and nothing else."""
    caught: list[Tensor] = []
    hook = lm.model.register_forward_hook(lambda _m, _a, out: caught.append(out.last_hidden_state))
    try:
        logits = lm(input_ids=_row(lm, LENGTHS[0]), use_cache=False).logits
    finally:
        hook.remove()
    if _close(logits, caught[0] @ lm.lm_head.weight.t()):
        return None
    return "its logits are not hidden states times the head's weight (a bias, a scale or a soft cap at the head)"


def _close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() <= TOLERANCE * wanted.abs().max())
