"""What can't be trained on is refused with a counted reason or trained without harm; no step is ever half a number."""

import msgspec
import numpy as np
import pytest

from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for, weights_of


@pytest.fixture(scope="module")
def trainer(policy_folder):
    return Trainer(settings_for(policy_folder, kl_coef=0.1, entropy_coef=0.01, max_tokens_per_rank=64))


def with_mask(sample, mask):
    mask = np.asarray(mask, np.uint8)
    return msgspec.structs.replace(
        sample, mask=mask, logprobs=np.where(mask, -4.0, 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
    )  # fmt: skip


def sane(numbers):
    return all(np.isfinite(v) for v in numbers.values())


def unchanged(trainer, before):
    return all(bool((before[name] == t).all()) for name, t in weights_of(trainer).items())


def test_a_group_that_is_all_masked_is_counted_and_moves_nothing(trainer):
    before, version = weights_of(trainer), trainer.version
    numbers = trainer.step([with_mask(s, np.zeros(len(s.ids))) for s in make_samples(4)])
    assert numbers["refused/empty_completion"] == 4 and numbers["refused_step/nothing_to_train_on"] == 1
    assert numbers["applied"] == 0 and trainer.version == version and unchanged(trainer, before) and sane(numbers)


def test_a_masked_group_leaves_the_others_alone(trainer):
    samples = make_samples(8)
    numbers = trainer.step([with_mask(s, np.zeros(len(s.ids))) if s.group_id == "g0" else s for s in samples])
    assert numbers["refused/empty_completion"] == 4 and numbers["samples"] == 4
    assert numbers["applied"] == 1 and sane(numbers)


def test_episodes_of_one_token(trainer):
    samples = [with_mask(s, [0] * (len(s.ids) - 1) + [1]) for s in make_samples(8, seed=3)]
    numbers = trainer.step(samples)
    assert numbers["tokens"] == 8 and numbers["applied"] == 1 and sane(numbers)
    shortest = [
        msgspec.structs.replace(s, ids=s.ids[:2], mask=np.array([0, 1], np.uint8), logprobs=s.logprobs[-2:],
                                versions=s.versions[-2:])
        for s in samples
    ]  # fmt: skip
    numbers = trainer.step(shortest)
    assert numbers["tokens"] == 8 and numbers["applied"] == 1 and sane(numbers)


def test_an_episode_that_is_one_token_altogether_has_nothing_that_predicts_it(trainer):
    s = make_samples(1)[0]
    lone = msgspec.structs.replace(s, ids=s.ids[:1], mask=np.ones(1, np.uint8), logprobs=np.float32([-1]),
                                   versions=np.int32([0]))  # fmt: skip
    assert trainer.step([lone])["refused/first_token_trained"] == 1
    empty = msgspec.structs.replace(s, ids=s.ids[:0], mask=s.mask[:0], logprobs=s.logprobs[:0], versions=s.versions[:0])
    assert trainer.step([empty])["refused/empty_completion"] == 1


def test_a_sequence_beyond_the_context_is_counted_and_its_return_still_counts(trainer):
    samples = make_samples(4, seed=5)
    s = samples[0]
    long = msgspec.structs.replace(
        s, ids=np.r_[s.ids, np.zeros(126, np.int32)], mask=np.r_[s.mask, np.zeros(126, np.uint8)],
        logprobs=np.r_[s.logprobs, np.zeros(126, np.float32)], versions=np.r_[s.versions, np.full(126, -1, np.int32)],
    )  # fmt: skip
    numbers = trainer.step([long, *samples[1:]])
    assert numbers["refused_tokens/longer_than_context"] == np.count_nonzero(s.mask) > 0
    assert numbers["refused/longer_than_context"] == 1 and numbers["samples"] == 3 and sane(numbers)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_log_probs_that_are_not_numbers(trainer, value):
    samples = make_samples(4, seed=6)
    broken = samples[0].logprobs.copy()
    broken[-1] = value
    numbers = trainer.step([msgspec.structs.replace(samples[0], logprobs=broken), *samples[1:]])
    assert numbers["refused/non_finite"] == 1 and numbers["applied"] == 1 and sane(numbers)
    padding = samples[1].logprobs.copy()
    padding[0] = value  # of a prompt token: nobody reads it
    assert sane(trainer.step([samples[0], msgspec.structs.replace(samples[1], logprobs=padding), *samples[2:]]))


@pytest.mark.parametrize("value", [-3e38, -1e30, -200.0, 80.0, 800.0, 3e38])
def test_log_probs_that_are_finite_but_absurd(trainer, value):
    samples = make_samples(4, seed=7)
    wild = np.where(samples[0].mask, value, 0).astype(np.float32)
    assert sane(trainer.step([msgspec.structs.replace(samples[0], logprobs=wild), *samples[1:]]))


@pytest.mark.parametrize("token", [-1, 64, 2**31 - 1])
def test_tokens_that_the_policy_has_not(trainer, token):
    samples = make_samples(4, seed=8)
    ids = samples[0].ids.copy()
    ids[1] = token
    before = weights_of(trainer)
    numbers = trainer.step([msgspec.structs.replace(samples[0], ids=ids), *samples[1:]])
    assert numbers["refused/unknown_token"] == 1 and numbers["samples"] == 3 and sane(numbers)
    assert not unchanged(trainer, before)


@pytest.mark.parametrize("one", [1, 2, 255, True])
def test_a_mask_is_one_wherever_it_is_not_zero(policy_folder, one):
    def made(samples):
        return Trainer(settings_for(policy_folder, denominator="sequence")).step(samples)

    samples = make_samples(4, seed=9)
    marked = [msgspec.structs.replace(s, mask=s.mask * np.asarray(one)) for s in samples]
    wanted, got = made(samples), made(marked)
    for name in ("loss", "policy_loss", "grad_norm", "tokens"):
        assert got[name] == wanted[name], name


@pytest.mark.parametrize("ret", [1e20, 1e30, 1e38, 1e300])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scale": "group"},
        {"scale": "batch", "objective": "cispo"},
        {"advantage": "reinforce_plus_plus", "baseline": "none", "scale": "batch"},
        {"advantage": "gae", "baseline": "none", "scale": "batch"},  # whitened, but the critic is to learn the return
        {"advantage": "gae", "baseline": "none"},
    ],
)
def test_returns_beyond_all_measure_move_everything_or_nothing(policy_folder, fields, ret):
    trainer = Trainer(settings_for(policy_folder, kl_coef=0.0, **fields))
    trainer.step(make_samples(8, seed=10))

    def state():
        return weights_of(trainer) | dict(trainer.optimizer_tensors())

    before, samples = state(), make_samples(8, seed=11)
    numbers = trainer.step([msgspec.structs.replace(samples[0], ret=ret), *samples[1:]])
    if numbers["applied"]:
        assert sane(numbers) and not [name for name in numbers if name.startswith("refused_step/")]
        assert all(bool(t.isfinite().all()) for t in state().values())
    else:
        assert [v for name, v in numbers.items() if name.startswith("refused_step/non_finite")] == [1.0]
        assert all(bool((before[name] == t).all()) for name, t in state().items())
