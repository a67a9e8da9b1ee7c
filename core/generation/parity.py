"""The parity probe: engine and learner must give the same log-probs to the same ids.

At start the engine samples some completions and the learner's model scores the very same ids under the same weights.
Another attention mask, rotary base, head dtype or a temperature applied on one side only shows here, before a run
trains on wrong ratios.

What rounding alone may do. Let the two sides' logits differ by d. A token of probability p has a log-prob that then
differs by d_token - sum(p_j d_j), which is at most 2 (1 - p) max|d|, and 2 (1 - p) E|d| in the mean: a policy that is
sure of its tokens hides everything, an unsure one shows it. So the mean difference is held against the mean of 1 - p.
In bfloat16 (unit roundoff u = 2^-9) logits of size 16 round by up to 0.03 on each side, which is E|d| = 0.02; the
residual stream of 28 layers, two additions each, adds sqrt(2 * 56 / 3) u = 0.012 of the logits' spread of about 3,
E|d| = 0.03. Together 0.05, so `mean_share` 0.1; 4 deviations of a single token's d on both sides give `max_abs` 0.5.
Measured on the shipped policy (960 tokens): rounding 0.03 to 0.04, a temperature that is 5 % off 0.55 to 0.6, another
rotary base 12. In float32 rounding is 2^-15 of that; what is left are other approximations of the same functions.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from core.generation.engine import Completion, Engine, Sampling
from core.weights.filesystem import read_manifest

THRESHOLDS = {"bfloat16": (0.5, 0.1), "float32": (0.02, 0.01)}
"""By the type that both sides compute in: most of a single token's |difference| in nats, and of the mean |difference|
over the mean of 1 - p."""
_SURE = 1e-3
"""A policy that is surer than this on average is held to it: float32 log-probs have rounding of their own."""
Score = Callable[[Sequence[tuple[list[int], list[int]]]], list[np.ndarray]]
"""(prompt ids, completion ids) of several samples -> log-probs [completion tokens] of each, at temperature 1."""


class ParityError(RuntimeError):
    """Engine and learner disagree about the policy."""


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of log-probs, engine's minus learner's, in nats."""

    tokens: int
    max_abs: float
    mean_abs: float
    mean: float
    uncertain: float
    """Mean of 1 - p over the sampled tokens, by the engine."""
    worst_token: int
    """Its id, and below its log-prob on both sides."""
    worst_engine: float
    worst_learner: float

    @property
    def mean_share(self) -> float:
        """What differs, as a share of what could: mean |difference| over the mean of 1 - p."""
        return self.mean_abs / max(self.uncertain, _SURE)

    def check(self, *, max_abs: float, mean_share: float) -> None:
        """Raises ParityError above the thresholds, or where a log-prob is not a number."""
        if self.max_abs <= max_abs and self.mean_share <= mean_share:
            return
        allowed = mean_share * max(self.uncertain, _SURE)
        raise ParityError(
            f"engine and learner differ on equal ids: mean |difference| {self.mean_abs:.2g} (allowed {allowed:.2g}), "
            f"largest {self.max_abs:.4f} (allowed {max_abs:g}) over {self.tokens} tokens, worst at token "
            f"{self.worst_token}: engine {self.worst_engine:.4f}, learner {self.worst_learner:.4f}; not training"
        )


async def probe(engine: Engine, prompts: Sequence[Sequence[int]], score: Score, *, max_new_tokens: int = 64) -> Parity:
    """Sample a completion for each prompt at temperature 1 and score it; `score` runs in a thread. Raises ValueError
    without prompts, or when the engine's weights changed meanwhile."""
    if not prompts:
        raise ValueError("the parity probe needs at least one prompt")
    sampling = Sampling(max_new_tokens=max_new_tokens)
    done = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))
    versions = sorted({int(version) for completion in done for version in completion.versions})
    if len(versions) != 1:
        raise ValueError(f"weights changed during the parity probe (versions {versions}): probe again")
    samples = [(list(prompt), completion.ids.tolist()) for prompt, completion in zip(prompts, done, strict=True)]
    return compare(done, await asyncio.to_thread(score, samples))


def compare(completions: Sequence[Completion], scored: Sequence[np.ndarray]) -> Parity:
    engine = np.concatenate([completion.logprobs for completion in completions]).astype(np.float64)
    learner = np.concatenate(scored).astype(np.float64)
    ids = np.concatenate([completion.ids for completion in completions])
    if engine.shape != learner.shape:
        raise ValueError(f"the learner scored {learner.size} tokens, the engine sampled {engine.size}")
    difference = engine - learner
    size = np.where(np.isfinite(difference), np.abs(difference), np.inf)
    worst = int(size.argmax())
    return Parity(
        tokens=int(ids.size), max_abs=float(size.max()), mean_abs=float(size.mean()), mean=float(difference.mean()),
        uncertain=float(-np.expm1(np.minimum(engine, 0.0)).mean()),
        worst_token=int(ids[worst]), worst_engine=float(engine[worst]), worst_learner=float(learner[worst]),
    )  # fmt: skip


def transformers_score(
    model: str, *, weights: str = "", revision: str = "", dtype: str = "float32", device: str = "cpu", rows: int = 8
) -> Score:
    """A learner's stand-in where the learner is another process: the same model under transformers.

    weights: a version's folder (`core.weights.filesystem`) whose weights count, instead of the model's own. Raises
    FileNotFoundError when that is gone.
    """
    import torch

    loaded: Any = _with_weights(model, weights, revision, getattr(torch, dtype)).to(device).eval()

    @torch.inference_mode()
    def score(samples: Sequence[tuple[list[int], list[int]]]) -> list[np.ndarray]:
        scored = []
        for start in range(0, len(samples), rows):
            part = samples[start : start + rows]
            width = max(len(prompt) + len(ids) for prompt, ids in part)
            # Padded behind: under causal attention nothing real sees a pad.
            batch = torch.zeros(len(part), width, dtype=torch.long)
            for row, (prompt, ids) in enumerate(part):
                batch[row, : len(prompt) + len(ids)] = torch.tensor([*prompt, *ids])
            logits = loaded(batch.to(device)).logits.float()
            for row, (prompt, ids) in enumerate(part):
                here = torch.log_softmax(logits[row, len(prompt) - 1 : len(prompt) + len(ids) - 1], -1)
                scored.append(here[torch.arange(len(ids)), torch.tensor(ids)].cpu().numpy())
        return scored

    return score


def _with_weights(model: str, weights: str, revision: str, dtype: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not weights:
        return AutoModelForCausalLM.from_pretrained(model, revision=revision or "main", dtype=dtype)
    with tempfile.TemporaryDirectory() as whole:  # a version's folder has the weights' files alone
        AutoConfig.from_pretrained(model, revision=revision or "main").save_pretrained(whole)
        for name in read_manifest(weights).files:
            os.symlink(Path(weights).resolve() / name, Path(whole) / name)
        return AutoModelForCausalLM.from_pretrained(whole, dtype=dtype)
