"""The parity probe passes equal models and names what differs otherwise."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from core.generation import parity
from core.generation.engine import Completion, Sampling
from core.generation.transformers_engine import TransformersEngine

PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5], [9]]


def probed(model, scorer):
    async def run():
        engine = TransformersEngine(model)
        await engine.start()
        try:
            return await parity.probe(engine, PROMPTS, scorer, max_new_tokens=20)
        finally:
            await engine.stop()

    return asyncio.run(run())


def scorer_of(make_model, tmp_path, change):
    model = make_model()
    change(model)
    model.save_pretrained(tmp_path)
    return parity.transformers_score(str(tmp_path), rows=2)


def test_the_same_weights_agree(make_model, tmp_path):
    found = probed(make_model(), scorer_of(make_model, tmp_path, lambda model: None))
    assert found.tokens == 60 and found.max_abs < 1e-4
    found.check(max_abs=1e-3, mean_share=1e-3)


@pytest.mark.parametrize("kind", ["one weight", "temperature", "rotary base"])
def test_another_policy_is_refused_in_one_line(make_model, tmp_path, kind):
    def change(model):
        if kind == "one weight":
            model.model.layers[1].mlp.down_proj.weight.data *= 1.3
        elif kind == "temperature":
            model.model.norm.weight.data *= 1.1
        else:
            model.config.rope_parameters["rope_theta"] = 300.0

    found = probed(make_model(), scorer_of(make_model, tmp_path, change))
    with pytest.raises(parity.ParityError, match=r"mean \|difference\| .*allowed .*worst at token"):
        found.check(max_abs=1e-3, mean_share=1e-3)


def test_a_log_prob_that_is_no_number_is_refused():
    done = Completion(ids=np.array([3], np.int32), logprobs=np.array([-1.0], np.float32),
                      versions=np.array([0], np.int32), finish="length")  # fmt: skip
    with pytest.raises(parity.ParityError):
        parity.compare([done], [np.array([np.nan])]).check(max_abs=9, mean_share=9)


def test_scores_do_not_depend_on_what_is_beside_them(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    samples = [([5, 6], [7, 8, 9]), ([1] * 9, [2])]
    alone = [parity.transformers_score(str(tmp_path), rows=1)([sample])[0] for sample in samples]
    for together, single in zip(parity.transformers_score(str(tmp_path), rows=2)(samples), alone, strict=True):
        assert torch.allclose(torch.tensor(together), torch.tensor(single), atol=1e-5)


def found(logprobs, difference):
    engine = np.array(logprobs, np.float32)
    done = Completion(ids=np.zeros(len(engine), np.int32), logprobs=engine,
                      versions=np.zeros(len(engine), np.int32), finish="length")  # fmt: skip
    return parity.compare([done], [engine - np.float32(difference)])


def test_the_mean_is_held_against_what_the_policy_left_open():
    """The same difference of log-probs is rounding where tokens are unsure, and a mistake where they are sure."""
    unsure, sure = found([np.log(0.5)] * 100, 0.04), found([np.log(0.99)] * 100, 0.04)
    assert unsure.uncertain == pytest.approx(0.5) and sure.uncertain == pytest.approx(0.01, rel=1e-3)
    max_abs, mean_share = parity.THRESHOLDS["bfloat16"]
    unsure.check(max_abs=max_abs, mean_share=mean_share)
    with pytest.raises(parity.ParityError):
        sure.check(max_abs=max_abs, mean_share=mean_share)
    found([-1e-7] * 100, 1e-6).check(max_abs=max_abs, mean_share=mean_share)  # certain tokens: float32's own rounding


DEMO = str(Path(__file__).parents[3] / "configs" / "policies" / "demo")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_thresholds_pass_rounding_and_refuse_a_temperature_10_percent_off(dtype, tmp_path):
    """On the shipped policy, unsure since its prompts are noise: the same weights computed in bfloat16 and in float32
    are rounding, no more."""
    score = parity.transformers_score(DEMO, dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=dtype)
    model.model.norm.weight.data *= 0.9
    model.save_pretrained(tmp_path)
    warm = parity.transformers_score(str(tmp_path), dtype=dtype)

    async def run():
        engine = TransformersEngine(DEMO, dtype="float32")
        await engine.start()
        try:
            prompts = [list(range(4 + i, 60 + i)) for i in range(4)]
            sampling = Sampling(max_new_tokens=128, seed=3)
            done = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))
            return [(p, c.ids.tolist()) for p, c in zip(prompts, done, strict=True)], done
        finally:
            await engine.stop()

    samples, done = asyncio.run(run())
    max_abs, mean_share = parity.THRESHOLDS[dtype]
    parity.compare(done, score(samples)).check(max_abs=max_abs, mean_share=mean_share)
    with pytest.raises(parity.ParityError):
        parity.compare(done, warm(samples)).check(max_abs=max_abs, mean_share=mean_share)
