"""A step against the whole loss written out in float64, and what must not change it: cuts, order, ranks."""

import re

import msgspec
import numpy as np
import pytest
import torch

from core.episodes.metrics import METRICS
from core.training.model import ModelError
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from tests.unit.generation.multimodal import tiny_multimodal
from tests.unit.training.conftest import make_samples


def settings_for(folder, **fields):
    base = {"model": folder, "dtype": "float32", "device": "cpu", "lr": 1e-3, "max_tokens_per_rank": 4096}
    return TrainerSettings(**{**base, **fields})


def gradients(trainer, samples):
    """Metrics of a step and the gradients that it would have applied."""
    caught = {}

    def keep(grad_norm):
        caught.update({name: p.grad.clone() for name, p in trainer.model.named_masters()})
        trainer.version += 1

    trainer._update = keep
    return trainer.step(samples), caught


def dense_loss(model, reference, samples, s):
    """The loss of a batch, one sample and token at a time, from dense logits in float64."""
    totals = []
    for sample in samples:
        mates = [x.ret for x in samples if (x.group_id, x.turn, x.role) == (sample.group_id, sample.turn, sample.role)]
        n = len(mates)
        alike = min(mates) == max(mates)  # so is a group of one
        adv = 0.0 if alike else (sample.ret - sum(mates) / n) * n / (n - 1)
        ids = torch.tensor(sample.ids.astype(np.int64))[None]
        logp = torch.log_softmax(model(ids).logits[0] / s.temperature, -1)
        with torch.no_grad():
            logref = torch.log_softmax(reference(ids).logits[0] / s.temperature, -1)
        for t in np.flatnonzero(sample.mask):
            row, y = logp[t - 1], int(sample.ids[t])
            mu = float(sample.logprobs[t])
            if s.proximal == "recompute":
                weight = min(float(torch.exp(row[y].detach() - mu)), s.tis_cap)
                ratio = torch.exp(row[y] - row[y].detach())
            else:
                weight, ratio = 1.0, torch.exp(row[y] - mu)
            clip = -weight * torch.minimum(adv * ratio, adv * ratio.clamp(1 - s.clip_low, 1 + s.clip_high))
            d = logref[t - 1, y] - row[y]
            totals.append(clip + s.kl_coef * (torch.exp(d) - d - 1) + s.entropy_coef * (row.exp() * row).sum())
    return torch.stack(totals).sum() / len(totals)


@pytest.mark.parametrize(("proximal", "temperature"), [("recompute", 1.0), ("behaviour", 1.0), ("behaviour", 0.7)])
def test_step_equals_the_dense_float64_loss(policy_folder, proximal, temperature):
    from transformers import AutoModelForCausalLM

    settings = settings_for(
        policy_folder, kl_coef=0.3, entropy_coef=0.02, proximal=proximal, temperature=temperature
    )  # fmt: skip
    trainer = Trainer(settings)
    with torch.no_grad():  # away from the reference
        for parameter in trainer.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)) * 0.02)
    samples = make_samples(8)

    dense = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float64, attn_implementation="eager")
    reference = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float64, attn_implementation="eager")
    with torch.no_grad():
        for (_, p), (_, q) in zip(dense.named_parameters(), trainer.model.named_masters(), strict=True):
            p.copy_(q)
    loss = dense_loss(dense, reference, samples, settings)
    loss.backward()

    numbers, grads = gradients(trainer, samples)
    assert numbers["loss"] == pytest.approx(loss.item(), abs=1e-5)
    for name, p in dense.named_parameters():
        torch.testing.assert_close(grads[name].double(), p.grad, atol=1e-5, rtol=1e-3)
    assert numbers["kl"] > 0 and numbers["tokens"] == sum(int(s.mask.sum()) for s in samples)


@pytest.mark.parametrize("denominator", ["token", "sequence", "constant"])
def test_loss_and_gradients_do_not_depend_on_cuts_or_order(policy_folder, denominator):
    samples = make_samples(14, group=5)
    shuffled = [samples[i] for i in np.random.default_rng(3).permutation(len(samples))]
    runs = []
    for batch, budget in ((samples, 4096), (samples, 45), (shuffled, 90), (shuffled, 12)):
        trainer = Trainer(
            settings_for(
                policy_folder, max_tokens_per_rank=budget, denominator=denominator, constant_tokens=64, kl_coef=0.1
            )
        )
        runs.append(gradients(trainer, batch))
    assert runs[0][0]["micro_batches"] == 1 and runs[1][0]["micro_batches"] >= 5
    assert max(len(s.ids) for s in samples) > 12 and runs[3][0]["samples"] == 14
    for numbers, grads in runs[1:]:
        assert numbers["loss"] == pytest.approx(runs[0][0]["loss"], abs=1e-5)
        assert numbers["entropy"] == pytest.approx(runs[0][0]["entropy"], abs=1e-5)
        for name, grad in grads.items():
            torch.testing.assert_close(grad, runs[0][1][name], atol=1e-5, rtol=1e-4)


def test_training_raises_what_was_rewarded(policy_folder):
    samples = make_samples(8, seed=4)
    trainer = Trainer(settings_for(policy_folder, kl_coef=0.0, entropy_coef=0.0, proximal="behaviour", lr=3e-3))
    before = weights_of(trainer)
    first = trainer.step(samples)
    for _ in range(5):
        last = trainer.step(samples)
    assert first["applied"] == 1.0 and trainer.version == 6 and last["version"] == 6.0
    assert last["policy_loss"] < first["policy_loss"]
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights_of(trainer).items())
    assert last["lag_max"] == first["lag_max"] + 5


def weights_of(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.full_tensors()}


def test_bad_samples_are_left_out_and_counted(policy_folder):
    samples = make_samples(8)
    nan = samples[1].logprobs.copy()
    nan[-1] = np.nan
    bad = [
        msgspec.structs.replace(samples[0], mask=np.zeros_like(samples[0].mask)),
        msgspec.structs.replace(samples[1], logprobs=nan),
        msgspec.structs.replace(samples[2], ret=float("nan")),
        *samples[3:],
    ]
    numbers = Trainer(settings_for(policy_folder, kl_coef=0.0)).step(bad)
    assert numbers["refused/empty_completion"] == 1 and numbers["refused/non_finite"] == 2
    assert numbers["samples"] == 5 and numbers["applied"] == 1 and np.isfinite(numbers["loss"])


def test_a_step_that_is_not_finite_changes_nothing(policy_folder):
    trainer = Trainer(settings_for(policy_folder, kl_coef=0.0))
    trainer.step(make_samples(8))
    before = weights_of(trainer)
    huge = [msgspec.structs.replace(s, ret=s.ret * 1e38) for s in make_samples(8, seed=2)]
    numbers = trainer.step(huge)
    assert numbers["applied"] == 0 and numbers["version"] == 1 and trainer.version == 1
    assert any(name.startswith("refused_step/non_finite") for name in numbers)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(trainer).items())
    assert trainer.step([])["refused_step/nothing_to_train_on"] == 1
    assert trainer.step(make_samples(8))["applied"] == 1


@pytest.mark.parametrize("fields", [{}, {"advantage": "gae", "baseline": "none"}], ids=["plain", "critic"])
def test_every_number_of_a_step_is_in_the_table_of_metrics(policy_folder, fields):
    trainer = Trainer(settings_for(policy_folder, **fields))
    sent = make_samples(6)
    sent[0] = msgspec.structs.replace(sent[0], ret=float("nan"))
    numbers = {**trainer.step(sent), **trainer.step(sent[:1])}
    varying = {"lag/[^/]+/": "lag/LAG/", "(refused|refused_tokens|refused_step)/.+": r"\1/REASON"}
    told = {re.sub("^masked_share/.+", "masked_share/CORRECTION", key) for key in numbers}
    for pattern, name in varying.items():
        told = {re.sub(f"^{pattern}", name, key) for key in told}
    assert {"refused/REASON", "refused_step/REASON", "masked_share/CORRECTION", "lr"} <= told
    assert told <= {metric.name for metric in METRICS if "step" in metric.where}


def test_an_episode_twice_in_a_batch_is_an_error(policy_folder):
    samples = make_samples(4)
    with pytest.raises(ValueError, match=r"g0/1 turn 0 .* twice"):
        Trainer(settings_for(policy_folder, kl_coef=0.0)).step([*samples, samples[1]])


def test_refusing_what_can_not_be(policy_folder):
    with pytest.raises(ValueError, match="constant_tokens"):
        settings_for(policy_folder, denominator="constant")
    with pytest.raises(ValueError, match="schedule_steps"):
        settings_for(policy_folder, schedule="cosine")
    with pytest.raises(ModelError, match=r"no model folder '\./nowhere'"):
        Trainer(settings_for("./nowhere"))


def test_a_multimodal_model_is_refused_by_its_name(tmp_path):
    tiny_multimodal().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"is a Gemma3ForConditionalGeneration, .* wanted a language model alone"):
        Trainer(settings_for(str(tmp_path)))


def test_settings_mirror_the_config():
    from configs.schema import Learner

    settings = TrainerSettings(model="m", **Learner().model_dump())
    assert all(getattr(settings, name) == value for name, value in Learner().model_dump().items())
