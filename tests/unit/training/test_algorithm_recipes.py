"""Every recipe of docs/algorithms.md, from its config to loss and gradient, against the same written out in float64."""

import msgspec
import numpy as np
import pytest
import torch

from core.training.trainer import Trainer
from tests.unit.training import dense
from tests.unit.training.recipes import BUDGET, batch, documented, settings_of, shift
from tests.unit.training.test_trainer import gradients, settings_for


def test_the_page_and_the_references_name_the_same_recipes():
    assert documented().keys() == dense.RECIPES.keys()


def twin(folder, masters, dtype=torch.float64):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    if masters is not None:
        with torch.no_grad():
            for (_, p), (_, q) in zip(model.named_parameters(), masters, strict=True):
                p.copy_(q)
    return model


@pytest.fixture(scope="module")
def batches(policy_folder):
    """Samples by credit, drawn from the shifted policy."""
    trainer = Trainer(settings_for(policy_folder, kl_coef=0.0))
    shift(trainer)
    model = twin(policy_folder, trainer.model.named_masters())
    return {credit: batch(credit, model=model) for credit in ("turn", "trajectory")}


ACTS = {
    "TRLOO (default)": "tis_cut_share",
    "IcePop": "masked_share/icepop",
    "Dr.Kernel's filters": "masked_share/token_veto",
    "DeepSeek-V3.2": "masked_share/off_policy_sequence_mask",
}
"""The figure that shows that a recipe's bounds acted; where none is named, clip_share."""


def impossible_token(samples):
    """One member whose ratios cancel in the mean, with a token that the policy would never have drawn."""
    found = next(i for i, s in enumerate(samples) if s.index == 0 and s.mask.sum() > 1)
    logprobs = samples[found].logprobs.copy()
    at = np.flatnonzero(samples[found].mask)
    logprobs[at[0]] += 9.5
    logprobs[at[1]] -= 9.5
    changed = msgspec.structs.replace(samples[found], logprobs=logprobs)
    return [*samples[:found], changed, *samples[found + 1 :]]


@pytest.mark.parametrize("name", dense.RECIPES)
def test_a_step_is_the_recipe(policy_folder, tmp_path, batches, name):
    settings = settings_of(name, policy_folder, tmp_path)
    samples = batches[settings.credit]
    if name == "Dr.Kernel's filters":
        samples = impossible_token(samples)
    trainer = Trainer(settings)
    shift(trainer)
    model, reference = twin(policy_folder, trainer.model.named_masters()), twin(policy_folder, None)
    critic = None
    if trainer.critic is not None:
        masters = list(trainer.critic.model.named_masters())
        body = twin(policy_folder, [m for m in masters if "lm_head" not in m[0]]).model
        critic = (body, dict(masters)["lm_head.weight"].detach().double()[0])
    rows = dense.look(model, reference, samples, critic=critic)
    loss = dense.RECIPES[name](rows, budget=BUDGET)
    loss.backward()

    numbers, grads = gradients(trainer, samples)
    assert numbers["applied"] == 1.0 and numbers["grad_norm"] > 0.02, "far more than the tolerance"
    assert 0.0 < numbers[ACTS.get(name, "clip_share")] < 0.9
    assert numbers["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert grads.keys() == dict(model.named_parameters()).keys()
    for key, p in model.named_parameters():
        torch.testing.assert_close(grads[key].double(), p.grad, atol=1e-5, rtol=1e-3)
    if critic is not None:
        assert numbers["value_loss"] == pytest.approx(dense.ppo_value(rows).item(), abs=1e-5)
    assert all(np.isfinite(value) for value in numbers.values())


def test_dapo_counts_what_it_drops(policy_folder, tmp_path):
    samples = batch("trajectory")
    numbers = Trainer(settings_of("DAPO", policy_folder, tmp_path, overlong_buffer_tokens=0)).step(samples)
    dull = sum(s.group_id == "g2" for s in samples)
    assert numbers["refused/all_equal"] == dull and numbers["samples"] == len(samples) - dull
