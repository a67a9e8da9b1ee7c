"""Supervised training: rows of similar length in padded batches, loss on the answers' tokens.

    lm = sft.train(lm, examples, SftSettings(steps=1600, rows_per_step=128, ...), report=print)

Padding stands at the end of a row, where a causal model never sees it from a real token, so there is no attention mask.
Lengths are rounded up to a multiple of 32, so that a compiled model meets few shapes. The loss of a step is the mean
over all answer tokens of its rows. Batches are a pure function of the seed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from core.training.logprobs import chunked_logprobs
from core.training.schedule import learning_rate
from core.training.sft_data import Example

_ROUND = 32
_POOL = 8
"""Steps whose rows are drawn together and then sorted by length."""


class SftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to train; the fields of the same name in `configs.schema.SftConfig`."""

    steps: int
    rows_per_step: int
    lr: float
    warmup_steps: int
    weight_decay: float
    grad_clip: float
    seed: int
    device: str
    """`cpu` or `cuda`"""
    compile: bool = False
    every: int = 20
    """Steps between two points of the loss curve."""


class Point(msgspec.Struct, frozen=True):
    """A point of the loss curve."""

    step: int
    loss: float
    """Mean over the steps since the last point, nats per answer token."""
    lr: float
    step_s: float


def batches(lengths: Sequence[int], rows: int, seed: int) -> Iterator[list[int]]:
    """Indices of `rows` examples for each step, without end: every example once per epoch in random order, examples of
    similar length in the same step."""
    if not lengths:
        raise ValueError("no examples to train on")
    rng = np.random.default_rng(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < rows * _POOL:
            waiting += rng.permutation(len(lengths)).tolist()
        pool, waiting = waiting[: rows * _POOL], waiting[rows * _POOL :]
        pool.sort(key=lambda i: lengths[i])
        for at in rng.permutation(_POOL):
            yield pool[at * rows : (at + 1) * rows]


def collate(rows: Sequence[Example], pad_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids int64 [rows, length], picked int64 [answer tokens], targets int64 [answer tokens]); `picked` are flat
    positions that predict an answer's token."""
    longest = max(len(row.prompt) + len(row.answer) for row in rows)
    longest = -(-longest // _ROUND) * _ROUND
    ids = np.full((len(rows), longest), pad_id, np.int64)
    picked, targets = [], []
    for r, row in enumerate(rows):
        n, m = len(row.prompt), len(row.answer)
        ids[r, :n], ids[r, n : n + m] = row.prompt, row.answer
        picked.append(r * longest + n - 1 + np.arange(m))
        targets.append(row.answer.astype(np.int64))
    return torch.from_numpy(ids), torch.from_numpy(np.concatenate(picked)), torch.from_numpy(np.concatenate(targets))


def train(
    lm: Any,
    examples: Sequence[Example],
    settings: SftSettings,
    *,
    pad_id: int,
    report: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """Train a transformers causal LM in place (float32 weights; bfloat16 compute on CUDA); returns the loss curve.

    Raises FloatingPointError as soon as a loss is not a number.
    """
    device = torch.device(settings.device)
    lm.to(device).train()
    body = torch.compile(lm.model, dynamic=False) if settings.compile else lm.model
    decayed = [p for p in lm.parameters() if p.ndim > 1]
    rest = [p for p in lm.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=settings.lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    curve: list[Point] = []
    losses: list[torch.Tensor] = []
    started = time.perf_counter()
    draws = batches([len(e.prompt) + len(e.answer) for e in examples], settings.rows_per_step, settings.seed)
    for step in range(settings.steps):
        ids, picked, targets = collate([examples[i] for i in next(draws)], pad_id)
        lr = learning_rate(
            step, peak=settings.lr, warmup_steps=settings.warmup_steps, schedule="cosine", total_steps=settings.steps
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            hidden = body(input_ids=ids.to(device, non_blocking=True), use_cache=False).last_hidden_state
            flat = hidden.flatten(0, 1).index_select(0, picked.to(device))
        logprobs, _ = chunked_logprobs(
            flat.float(), lm.lm_head.weight, targets.to(device), chunk_tokens=8192, want_entropy=False
        )
        loss = -logprobs.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), settings.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        losses.append(loss.detach())
        if (step + 1) % settings.every == 0 or step + 1 == settings.steps:
            mean = float(torch.stack(losses).mean())
            if not np.isfinite(mean):
                raise FloatingPointError(f"loss is {mean} within the {len(losses)} steps to {step + 1}: lower lr")
            now = time.perf_counter()
            curve.append(Point(step + 1, mean, lr, (now - started) / len(losses)))
            report(curve[-1])
            losses, started = [], now
    return curve
