"""The critic: advantages by hand, values that are learnt, and a checkpoint that holds it."""

import pytest
import torch

from core.checkpoints import store
from core.training.critic import gae_rows
from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for, weights_of


def test_gae_by_hand():
    rewards, values = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 0.25, 1.0])
    gains, targets = gae_rows(rewards, values, [2, 1], gamma=0.5, lam=0.5)
    second = 1.0 - 0.25
    first = 0.0 + 0.5 * 0.25 - 0.5 + 0.25 * second
    assert gains.tolist() == pytest.approx([first, second, 1.0])  # nothing passes from one sample to the next
    assert targets.tolist() == pytest.approx([first + 0.5, 1.0, 2.0])
    with pytest.raises(ValueError, match=r"\[4\]"):
        gae_rows(rewards, values, [2, 2], gamma=1.0, lam=1.0)


def critic_settings(folder, **fields):
    base = {"critic": True, "critic_lr": 3e-3, "kl_coef": 0.0, "entropy_coef": 0.0, "gae_lambda": 1.0}
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
