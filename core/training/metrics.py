"""What a step reports. Sums and maxima are taken per token on every rank and reduced over ranks; these names come out
(means are over trained tokens):

    loss, policy_loss       in total, and the objective's part of it, corrections in
    entropy                 of the policy at the trained positions, nats
    kl                      to the reference, k3 whatever is trained; 0 without a reference
    kl_behaviour            of the current policy to the one that sampled, k3 over sampled tokens
    drift                   mean of π - μ, in log-probs; 0 when learner and engine agree and nothing is stale
    ratio_mean, ratio_max   π/μ over trained tokens; far from 1 at lag 0 means that learner and engine disagree
    drift_abs_max           largest |π - μ|
    clip_share              tokens that the objective's bounds act on (`objectives.TokenObjective.held`)
    tis_mean                product of all corrections, mean
    tis_cut_share           importance weights that token_tis cut at a bound
    masked_share            tokens whose product of corrections is 0
    masked_share/<name>     tokens that this correction alone sets to 0
    lag/<bin>/<name>, ess   by lag, and the effective sample size (`core.algorithms.diagnostics`)
    truncated_share         samples that were cut off at the token limit, of all that came
    advantage_abs_mean      mean size of the advantage
    lag_mean, lag_max       learner version minus the version that sampled the token
    tokens                  trained tokens
    not_finite_tokens       tokens whose log-prob or loss is not a number; any refuses the step
    grad_norm, lr           before clipping; of this update
    samples, micro_batches  trained on; of this rank
    tokens_per_s, step_s    of all tokens in the rows, prompts included
    plan_s, pack_s, forward_backward_s, optimizer_s   parts of step_s; what a GPU does is counted where it is waited for
    look_s                  the pass before the first gradient, where there is one (`core.training.token_credit`)
    mfu                     share of the card's bfloat16 peak (`core.training.flops`); absent for an unknown card
    peak_gib                most memory in use on this rank's card during the step; absent on the CPU
    filling_share           tokens of this rank's rows that only fill them up
    compiled                1 when blocks ran compiled and still do; absent where they never were
    compile_retry           1 when the step was made again with blocks as written, since its numbers were not finite
    version, applied        after the step; 1 when the weights moved
    refused/<reason>        samples left out (`core.training.packing.REFUSALS`; `truncated` with overlong_filter; with
                            dynamic_sampling `core.algorithms.rewards.REASONS`)
    refused_tokens/<reason> sampled tokens of these
    refused_step/<reason>   nothing_to_train_on, non_finite_loss, non_finite_gradients, non_finite_values (the critic's
                            loss or gradient): weights are as before
"""

import time
from collections.abc import Sequence

import torch

from core.algorithms import diagnostics
from core.training.flops import peak_flops
from core.training.settings import TrainerSettings

SUMS = (
    "loss", "policy_loss", "tokens", "entropy", "kl", "drift", "drift_k3", "ratio", "clipped", "tis", "tis_cut",
    "masked", "advantage_abs", "lag", "not_finite",
)  # fmt: skip
MAXIMA = ("ratio", "drift_abs", "lag")


def correction_names(settings: TrainerSettings) -> list[str]:
    """The corrections in effect, as the metrics name them."""
    return [c.name if c.aggregate == "geometric" else f"{c.name}_{c.aggregate}" for c in settings.corrected]


def sums_width(corrections: Sequence[str]) -> int:
    """How many sums a step has (`core.training.objective.TokenLoss.figures`)."""
    return len(SUMS) + len(corrections) + len(diagnostics.LAG_BINS) * len(diagnostics.COLUMNS)


def summary(sums: Sequence[float], maxima: Sequence[float], corrections: Sequence[str] = ()) -> dict[str, float]:
    """Metrics from the reduced sums (`sums_width` of them) and MAXIMA."""
    if len(sums) != sums_width(corrections):
        raise ValueError(f"wanted {sums_width(corrections)} sums, got {len(sums)}")
    zeros, by_lag = sums[len(SUMS) :][: len(corrections)], sums[len(SUMS) + len(corrections) :]
    sums, columns = sums[: len(SUMS)], len(diagnostics.COLUMNS)
    total = dict(zip(SUMS, sums, strict=True))
    top = dict(zip(MAXIMA, maxima, strict=True))
    n = max(total["tokens"], 1.0)
    return {
        "loss": total["loss"],
        "policy_loss": total["policy_loss"],
        "tokens": total["tokens"],
        "entropy": total["entropy"] / n,
        "kl": total["kl"] / n,
        "drift": total["drift"] / n,
        "kl_behaviour": total["drift_k3"] / n,
        "ratio_mean": total["ratio"] / n,
        "ratio_max": top["ratio"],
        "drift_abs_max": top["drift_abs"],
        "clip_share": total["clipped"] / n,
        "tis_mean": total["tis"] / n,
        "tis_cut_share": total["tis_cut"] / n,
        "masked_share": total["masked"] / n,
        **{f"masked_share/{name}": count / n for name, count in zip(corrections, zeros, strict=True)},
        "advantage_abs_mean": total["advantage_abs"] / n,
        "lag_mean": total["lag"] / n,
        "lag_max": top["lag"],
        "not_finite_tokens": total["not_finite"],
        **diagnostics.summary([by_lag[at : at + columns] for at in range(0, len(by_lag), columns)]),
    }


class StepClock:
    """Where the time of a step goes, on one rank."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts: dict[str, float] = {}
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._started = self._last = time.perf_counter()

    def took(self, part: str, *, wait: bool = False) -> None:
        """Time since the last call goes to `part`; wait: for what the GPU still has to do."""
        if wait and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def numbers(self, *, tokens: int, flops: float) -> dict[str, float]:
        """Parts, rate, and on a GPU its use. tokens: of all ranks; flops: of this rank."""
        step_s = self._last - self._started
        out = self._parts | {"step_s": step_s, "tokens_per_s": tokens / step_s}
        if self._device.type == "cuda":
            out["peak_gib"] = torch.cuda.max_memory_allocated(self._device) / 2**30
            peak = peak_flops(torch.cuda.get_device_name(self._device))
            if peak is not None:
                out["mfu"] = flops / step_s / peak
        return out
