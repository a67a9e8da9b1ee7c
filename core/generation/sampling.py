"""From logits to tokens: one draw per row, each row with its own settings and its own stream of uniform numbers.

Tokens are drawn by inverting the cumulative distribution, so a row uses exactly one uniform number per token and what
it draws depends on its own seed and its own distribution alone, whatever runs beside it. The log-prob returned is that
of the distribution that was sampled from: after temperature, top-k and top-p, in this order.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

_BLOCK = 128
_BELOW_ONE = 1.0 - 2.0**-40
"""Keeps `uniform · total` below the total in float64, so that a draw never lands on a token of probability 0."""


def uniforms(seed: int | None) -> Iterator[float]:
    """An endless stream of numbers in [0, 1); equal seeds give equal streams, None a stream of its own."""
    generator = np.random.Generator(np.random.PCG64(seed))
    while True:
        yield from generator.random(_BLOCK).clip(max=_BELOW_ONE).tolist()


def draw(
    logits: torch.Tensor, temperatures: Sequence[float], top_ks: Sequence[int], top_ps: Sequence[float],
    numbers: Sequence[float],
) -> tuple[list[int], list[float]]:  # fmt: skip
    """One token per row of `logits` [rows, vocab] (any float dtype; computed in float32), with its log-prob.

    `temperatures`, `top_ks` (0: all), `top_ps` and `numbers` (uniform in [0, 1)) have one entry per row. Temperature 0
    takes the most probable token and tells its log-prob under the unscaled distribution, which nothing is cut from.
    """
    logits = logits.float()
    if any(temperature not in (0.0, 1.0) for temperature in temperatures):
        scale = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
        logits = logits / scale[:, None]
    top_ks = [0 if temperature == 0.0 else top_k for temperature, top_k in zip(temperatures, top_ks, strict=True)]
    top_ps = [1.0 if temperature == 0.0 else top_p for temperature, top_p in zip(temperatures, top_ps, strict=True)]
    if any(0 < top_k < logits.shape[-1] for top_k in top_ks):
        logits = _keep_top_k(logits, torch.tensor(top_ks, device=logits.device))
    if any(top_p < 1.0 for top_p in top_ps):
        logits = _keep_top_p(logits, torch.tensor(top_ps, device=logits.device))
    logprobs = torch.log_softmax(logits, dim=-1)
    cumulative = logprobs.double().exp_().cumsum_(dim=-1)
    at = torch.tensor(numbers, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
    # Logits that are NaN put the place behind the end; their log-prob is NaN, and whoever reads it refuses the sample.
    ids = torch.searchsorted(cumulative, at, right=True).clamp_(max=logits.shape[-1] - 1)
    if any(temperature == 0.0 for temperature in temperatures):
        greedy = torch.tensor([temperature == 0.0 for temperature in temperatures], device=logits.device)
        ids = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), ids)
    return ids[:, 0].tolist(), logprobs.gather(-1, ids)[:, 0].tolist()


def _keep_top_k(logits: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """Logits with everything below the `top_ks`-th largest [rows] at -inf; rows with 0, or with more than there are,
    stay."""
    size = logits.shape[-1]
    cut = (top_ks > 0) & (top_ks < size)
    largest = logits.topk(int(top_ks[cut].max()), dim=-1).values
    last = largest.gather(-1, (top_ks.clamp(1, largest.shape[-1]) - 1)[:, None])
    return logits.masked_fill((logits < last) & cut[:, None], float("-inf"))


def _keep_top_p(logits: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Logits with everything outside the smallest set of tokens that reaches `top_ps` [rows] at -inf."""
    ordered, order = logits.sort(dim=-1, descending=True)
    before = torch.softmax(ordered, dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0.0
    outside = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, order, before >= top_ps[:, None])
    return logits.masked_fill(outside & (top_ps < 1.0)[:, None], float("-inf"))
