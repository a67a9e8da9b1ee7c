"""What the engine sampled at a temperature, the learner scores at that temperature."""

import asyncio

import numpy as np
import pytest

from core.episodes.samples import Sample
from core.generation.engine import Sampling
from core.generation.transformers_engine import TransformersEngine
from core.training.trainer import Trainer
from tests.unit.training.conftest import VOCAB
from tests.unit.training.test_trainer import settings_for


async def sampled(folder, temperature):
    """Completions of one group as the engine gives them."""
    engine = TransformersEngine(folder, dtype="float32")
    await engine.start()
    draw = np.random.default_rng(3)
    prompts = [draw.integers(0, VOCAB, 6).tolist() for _ in range(4)]
    try:
        done = await asyncio.gather(
            *(
                engine.generate(prompt, Sampling(max_new_tokens=20, temperature=temperature, seed=number))
                for number, prompt in enumerate(prompts)
            )
        )
    finally:
        await engine.stop()
    samples = []
    for index, (prompt, one) in enumerate(zip(prompts, done, strict=True)):
        mask = np.r_[np.zeros(len(prompt), np.uint8), np.ones(len(one.ids), np.uint8)]
        samples.append(
            Sample(
                group_id="g", index=index, turn=0, role="generator", mask=mask, ret=float(index),
                ids=np.r_[prompt, one.ids].astype(np.int32),
                logprobs=np.r_[np.zeros(len(prompt)), one.logprobs].astype(np.float32),
                versions=np.where(mask, 0, -1).astype(np.int32),
            )
        )  # fmt: skip
    return samples


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.5])
def test_engine_and_learner_mean_the_same_distribution(policy_folder, temperature):
    samples = asyncio.run(sampled(policy_folder, temperature))
    right, other = (
        Trainer(settings_for(policy_folder, kl_coef=0.1, temperature=chosen)).step(samples)
        for chosen in (temperature, temperature + 0.5)
    )
    assert right["drift_abs_max"] < 1e-4 and abs(right["kl"]) < 1e-6
    assert other["drift_abs_max"] > 1e-3
