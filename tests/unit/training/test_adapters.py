"""Adapters: they alone are trained, the policy is published with them added in, and it is its own reference."""

import importlib.util
import sys

import pytest
import torch

from core.checkpoints import store
from core.training.adapters import AdapterError
from core.training.trainer import Trainer
from core.weights.fingerprint import fingerprint
from core.weights.incoming import receive
from core.weights.outgoing import Outgoing
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for, weights_of

needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is an extra: kernelmill[lora]")


def lora(folder, **fields):
    return settings_for(folder, **{"lora_rank": 4, "lora_alpha": 8.0, "lr": 5e-2, "kl_coef": 0.2, **fields})


@needs_peft
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_train_and_are_published_added_in(policy_folder, dtype):
    trainer = Trainer(lora(policy_folder, dtype=dtype))
    assert trainer.reference is None
    assert all(".lora_" in name for name, _ in trainer.model.named_masters())
    start = weights_of(trainer)
    plain = weights_of(Trainer(settings_for(policy_folder, kl_coef=0.0)))
    assert start.keys() == plain.keys()
    samples = make_samples(8)
    first = trainer.step(samples)
    assert first["applied"] == 1 and first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert trainer.step(samples)["kl"] > 1e-5  # away from the policy without adapters
    now = weights_of(trainer)
    moved = {name for name in now if not torch.equal(now[name], start[name])}
    assert moved and all(name.split(".")[-2].endswith("_proj") for name in moved)
    if dtype == "float32":  # what is published computes what the adapted model computes
        merged = Trainer(settings_for(policy_folder, kl_coef=0.0))
        merged.model.load_full_tensors(now)
        frozen = {"entropy": trainer.step(samples)["entropy"], "again": merged.step(samples)["entropy"]}
        assert frozen["entropy"] == pytest.approx(frozen["again"], abs=1e-5)


@needs_peft
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_that_gets_adapters_alone_has_the_learners_policy(policy_folder, tmp_path, dtype):
    trainer = Trainer(lora(policy_folder, dtype=dtype))
    trainer.outgoing = Outgoing("adapter", device=torch.device("cpu"))
    for seed in range(2):
        trainer.step(make_samples(8, seed=seed))
        manifest = trainer.publish(tmp_path)
        got = receive(manifest.source, device=torch.device("cpu"), timeout_s=20, base=str(policy_folder))
        assert fingerprint(got.tensors) == manifest.fingerprint
    trainer.outgoing.close()


@needs_peft
def test_a_checkpoint_holds_adapters(policy_folder, tmp_path):
    one = Trainer(lora(policy_folder))
    one.step(make_samples(8, seed=1))
    two = Trainer(lora(policy_folder, seed=9))
    two.load(store.commit(one.save(tmp_path)))
    for trainer in (one, two):
        trainer.step(make_samples(8, seed=2))
    for name, tensor in weights_of(one).items():
        torch.testing.assert_close(weights_of(two)[name], tensor, atol=1e-6, rtol=1e-5)


@needs_peft
def test_targets_that_the_policy_has_not(policy_folder):
    with pytest.raises(AdapterError, match="has not: w1"):
        Trainer(lora(policy_folder, lora_targets=("q_proj", "w1")))


def test_without_peft_one_line_says_so(policy_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(AdapterError, match="needs peft, which is not installed"):
        Trainer(lora(policy_folder))


def test_without_bitsandbytes_one_line_says_so(policy_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(AdapterError, match="needs bitsandbytes, which is not installed"):
        Trainer(lora(policy_folder, quantize="nf4"))
