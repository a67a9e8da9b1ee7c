"""The parity probe: engine and learner must give the same log-probs to the same ids.

At start the engine samples some completions and the learner's model scores the very same ids under the same weights.
Another attention mask, rotary base, head dtype or a temperature applied on one side only shows here, before a run
trains on wrong ratios. Rounding alone stays far below the thresholds (bfloat16: mean about 0.01, single tokens 0.1).
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
    worst_token: int
    """Its id, and below its log-prob on both sides."""
    worst_engine: float
    worst_learner: float

    def check(self, *, max_abs: float, mean_abs: float) -> None:
        """Raises ParityError above the thresholds, or where a log-prob is not a number."""
        if self.max_abs <= max_abs and self.mean_abs <= mean_abs:
            return
        raise ParityError(
            f"engine and learner differ on the same ids: mean |difference| {self.mean_abs:.4f} (allowed {mean_abs:g}), "
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
