"""What a step reports. Sums and maxima are taken per token on every rank and reduced over ranks; these names come out
(means are over trained tokens):

    loss, policy_loss       in total, and the clipped surrogate's part of it
    entropy                 of the policy at the trained positions, nats
    kl                      to the reference, k3; 0 without a reference
    kl_behaviour            of the current policy to the one that sampled, k3 over sampled tokens
    drift                   mean of π - μ, in log-probs; 0 when learner and engine agree and nothing is stale
    ratio_mean, ratio_max   π/μ over trained tokens; far from 1 at lag 0 means that learner and engine disagree
    drift_abs_max           largest |π - μ|
    clip_share              tokens without gradient since the clip holds them
    tis_mean, tis_cut_share importance weights, and the share that was cut at the cap
    advantage_abs_mean      mean size of the advantage
    lag_mean, lag_max       learner version minus the version that sampled the token
    tokens                  trained tokens
    not_finite_tokens       tokens whose log-prob or loss is not a number; any refuses the step
    grad_norm, lr           before clipping; of this update
    samples, micro_batches  trained on; of this rank
    tokens_per_s, step_s    of all tokens in the rows, prompts included
    version, applied        after the step; 1 when the weights moved
    refused/<reason>        samples left out (`core.training.packing.REFUSALS`)
    refused_step/<reason>   nothing_to_train_on, non_finite_loss, non_finite_gradients: weights are as before
"""

from collections.abc import Sequence

SUMS = (
    "loss", "policy_loss", "tokens", "entropy", "kl", "drift", "drift_k3", "ratio", "clipped", "tis", "tis_cut",
    "advantage_abs", "lag", "not_finite",
)  # fmt: skip
MAXIMA = ("ratio", "drift_abs", "lag")


def summary(sums: Sequence[float], maxima: Sequence[float]) -> dict[str, float]:
    """Metrics from the reduced SUMS and MAXIMA."""
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
        "advantage_abs_mean": total["advantage_abs"] / n,
        "lag_mean": total["lag"] / n,
        "lag_max": top["lag"],
        "not_finite_tokens": total["not_finite"],
    }
