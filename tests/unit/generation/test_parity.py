"""The parity probe passes equal models and names what differs otherwise."""

import asyncio

import numpy as np
import pytest
import torch

from core.generation import parity
from core.generation.engine import Completion
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
    found.check(max_abs=1e-3, mean_abs=1e-4)


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
    with pytest.raises(parity.ParityError, match=r"mean \|difference\| .*allowed 0\.0001.*worst at token"):
        found.check(max_abs=1e-3, mean_abs=1e-4)


def test_a_log_prob_that_is_no_number_is_refused():
    done = Completion(ids=np.array([3], np.int32), logprobs=np.array([-1.0], np.float32),
                      versions=np.array([0], np.int32), finish="length")  # fmt: skip
    with pytest.raises(parity.ParityError):
        parity.compare([done], [np.array([np.nan])]).check(max_abs=9, mean_abs=9)


def test_scores_do_not_depend_on_what_is_beside_them(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    samples = [([5, 6], [7, 8, 9]), ([1] * 9, [2])]
    alone = [parity.transformers_score(str(tmp_path), rows=1)([sample])[0] for sample in samples]
    for together, single in zip(parity.transformers_score(str(tmp_path), rows=2)(samples), alone, strict=True):
        assert torch.allclose(torch.tensor(together), torch.tensor(single), atol=1e-5)
