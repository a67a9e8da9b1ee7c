"""The critic: advantages by hand, values that are learnt, and a checkpoint that holds it."""

import msgspec
import numpy as np
import pytest
import torch

from core.checkpoints import store
from core.training.model import refuse_other_kind
from core.training.packing import pack
from core.training.token_credit import Row, spread
from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for, weights_of


def test_gae_by_hand(policy_folder):
    settings = critic_settings(policy_folder, token_gamma=0.5, gae_lambda=0.5)
    samples = [with_trained(make_samples(2, seed=9)[i], n, ret) for i, (n, ret) in enumerate([(2, 1.0), (1, 2.0)])]
    packed = pack(samples, [s.ret for s in samples], [1.0, 1.0], multiple=64)
    row = Row(packed, values=torch.tensor([0.5, 0.25, 1.0]))
    (done,) = spread([row], settings, world=1)
    second = 1.0 - 0.25
    first = 0.0 + 0.5 * 0.25 - 0.5 + 0.25 * second
    assert done.packed.advantages.tolist() == pytest.approx([first, second, 1.0])  # nothing passes between samples
    assert done.targets.tolist() == pytest.approx([first + 0.5, 1.0, 2.0])


def with_trained(sample, n, ret):
    """The sample with its last n tokens trained."""
    mask = np.r_[np.zeros(len(sample.ids) - n, np.uint8), np.ones(n, np.uint8)]
    return msgspec.structs.replace(sample, mask=mask, ret=ret)


def critic_settings(folder, **fields):
    base = {
        "advantage": "gae",
        "baseline": "none",
        "critic_lr": 3e-3,
        "kl_coef": 0.0,
        "entropy_coef": 0.0,
        "gae_lambda": 1.0,
    }
    return settings_for(folder, **{**base, **fields})


def test_a_fresh_critic_says_nothing_and_then_learns(policy_folder):
    trainer = Trainer(critic_settings(policy_folder, lr=1e-9, value_clip=10.0))
    samples = make_samples(8, seed=2)
    first = trainer.step(samples)
    mean = sum(abs(s.ret) * int(s.mask.sum()) for s in samples) / sum(int(s.mask.sum()) for s in samples)
    assert first["advantage_abs_mean"] == pytest.approx(mean, rel=1e-4)  # λ = γ = 1 and V = 0: the returns
    for _ in range(15):
        last = trainer.step(samples)
    assert last["value_loss"] < 0.6 * first["value_loss"] and last["value_grad_norm"] > 0


def test_cuts_do_not_change_the_critic_and_a_checkpoint_holds_it(policy_folder, tmp_path):
    whole = Trainer(critic_settings(policy_folder))
    cut = Trainer(critic_settings(policy_folder, max_tokens_per_rank=64))
    for seed in (3, 4):
        a, b = (t.step(make_samples(8, seed=seed)) for t in (whole, cut))
        assert b["micro_batches"] > 1 and b["value_loss"] == pytest.approx(a["value_loss"], abs=1e-5)
        assert b["value_grad_norm"] == pytest.approx(a["value_grad_norm"], abs=1e-5)
    back = Trainer(critic_settings(policy_folder))
    back.load(store.commit(whole.save(tmp_path)))
    a, b = (t.step(make_samples(8, seed=5)) for t in (whole, back))
    assert b["value_loss"] == pytest.approx(a["value_loss"], abs=1e-6)
    for name, tensor in weights_of(whole).items():
        torch.testing.assert_close(weights_of(back)[name], tensor, atol=1e-6, rtol=1e-5)


def test_a_checkpoint_of_other_settings_is_refused_before_anything_is_loaded(policy_folder, tmp_path):
    plain = Trainer(settings_for(policy_folder, kl_coef=0.0))
    plain.step(make_samples(8))
    written = store.commit(plain.save(tmp_path))
    trainer = Trainer(critic_settings(policy_folder))
    before = weights_of(trainer)
    with pytest.raises(ValueError, match=r"lacks the critic 'critic\..*'gae'"):
        trainer.load(written)
    assert trainer.version == 0 and all(torch.equal(before[name], t) for name, t in weights_of(trainer).items())
    with pytest.raises(ValueError, match=r"lacks the adapter 'x\.lora_A'.*lora_rank"):
        refuse_other_kind(dict(plain.optimizer_tensors()), ["x.lora_A"], [])
    with pytest.raises(ValueError, match=r"holds the adapter 'x\.lora_A'.*lora_rank"):
        refuse_other_kind({"x.lora_A.value": torch.zeros(1)}, [], [])
    trainer.step(make_samples(8))
    with_critic = store.commit(trainer.save(tmp_path))
    with pytest.raises(ValueError, match=r"holds the critic 'critic\..*'gae'"):
        plain.load(with_critic)
