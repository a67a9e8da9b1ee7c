"""What a step says about its tokens, by lag: the versions between the policy that sampled and the one that learns.

`sums_by_lag` makes one row of sums per bin, on one micro-batch; rows are added over micro-batches and ranks; `summary`
turns the total into numbers. So the figures don't depend on how the step was cut.

    lag/<bin>/tokens, share          trained tokens of that lag
    lag/<bin>/ratio_mean             π/μ
    lag/<bin>/kl_k1, kl_k3           estimates of KL(μ ‖ π), nats (tokens are samples of μ)
    lag/<bin>/clip_share             tokens that the objective's bounds act on
    lag/<bin>/masked_share           tokens with correction weight 0
    lag/<bin>/weight_mean            correction weights
    lag/<bin>/entropy                nats
    ess                              (Σ ρ)² / (n Σ ρ²) of the raw ratios π/μ: 1 on policy, 1/n when one token has it all
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.algorithms.ratios import log_ratio
from core.algorithms.segments import masked

LAG_BINS = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, None))
"""First and last lag of each bin."""
COLUMNS = ("tokens", "ratio", "ratio_square", "kl_k1", "kl_k3", "held", "zero_weight", "weight", "entropy")


def bin_names() -> list[str]:
    """`0`, `1`, `2`, `3-4`, ... in the order of LAG_BINS."""
    return [str(a) if a == b else f"{a}-{b}" if b is not None else f"{a}+" for a, b in LAG_BINS]


@torch.no_grad()
def sums_by_lag(
    logprobs: Tensor,
    behaviour: Tensor,
    versions: Tensor,
    version: int,
    *,
    held: Tensor,
    weights: Tensor,
    entropies: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Sums float64 [bins, columns] (LAG_BINS, COLUMNS) over the trained tokens; add them over micro-batches and ranks.

    logprobs, behaviour: floating [tokens]; versions: integer [tokens], that sampled; version: that learns.
    held: bool [tokens] (`TokenObjective.held`); weights: floating [tokens] (`Correction.weights`).
    A token from a version newer than `version` (after a rollback) counts as lag 0.
    """
    trained = torch.ones_like(held) if mask is None else mask
    log_r = log_ratio(logprobs, behaviour, mask).double()
    ratio = log_r.exp()
    table = torch.stack([
        torch.ones_like(ratio), ratio, ratio**2, -log_r, torch.expm1(log_r) - log_r,
        held.double(), (weights == 0).double(), masked(weights, mask).double(),
        torch.zeros_like(ratio) if entropies is None else masked(entropies, mask).double(),
    ], dim=1)  # fmt: skip
    lag = (version - versions).clamp(min=0)
    starts = torch.tensor([first for first, _ in LAG_BINS], device=lag.device)
    place = torch.bucketize(lag.to(starts.dtype), starts, right=True) - 1
    out = torch.zeros(len(LAG_BINS), len(COLUMNS), dtype=torch.float64, device=ratio.device)
    return out.index_add_(0, place[trained], table[trained])


def summary(total: Tensor | Sequence[Sequence[float]]) -> dict[str, float]:
    """Numbers from the added-up sums; bins without a token are left out."""
    rows = [dict(zip(COLUMNS, map(float, row), strict=True)) for row in total]
    tokens = sum(row["tokens"] for row in rows)
    out: dict[str, float] = {}
    if tokens == 0:
        return out
    for name, row in zip(bin_names(), rows, strict=True):
        n = row["tokens"]
        if n == 0:
            continue
        out |= {
            f"lag/{name}/tokens": n,
            f"lag/{name}/share": n / tokens,
            f"lag/{name}/ratio_mean": row["ratio"] / n,
            f"lag/{name}/kl_k1": row["kl_k1"] / n,
            f"lag/{name}/kl_k3": row["kl_k3"] / n,
            f"lag/{name}/clip_share": row["held"] / n,
            f"lag/{name}/masked_share": row["zero_weight"] / n,
            f"lag/{name}/weight_mean": row["weight"] / n,
            f"lag/{name}/entropy": row["entropy"] / n,
        }
    square = sum(row["ratio_square"] for row in rows)
    out["ess"] = sum(row["ratio"] for row in rows) ** 2 / (tokens * square)
    return out
