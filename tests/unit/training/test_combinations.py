"""Settings that can't go together are refused in one line that says what to do; those that can, are trained."""

import tomllib
from typing import Literal, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest

from actors.learner_parts import trainer_settings
from configs.load import ConfigError, load
from configs.schema import Learner
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.recipes import batch
from tests.unit.training.test_trainer import settings_for

REFUSED = {
    'objective = "gspo"\nhead = "fused"': "set head = 'recompute' or 'auto'",
    'head = "fused"\ncorrections = [{name = "token_veto", low = 1e-4}]': "token_veto.*set head",
    'head = "fused"\nhead_cache_gib = 1.0': "head = 'recompute'",
    'objective = "gspo"\ndual_clip = 3.0': "leave it out",
    "dual_clip = 0.5": "more than 1",
    "clip_low = 1.0": "cispo",
    'objective = "decoupled_ppo"\nproximal = "behaviour"': "'recompute' or 'loglinear'",
    'objective = "dppo"\nproximal = "loglinear"': "leave proximal at 'recompute'",
    'advantage = "gae"': "set baseline = 'none'",
    'advantage = "gae"\nbaseline = "none"\nscale = "group"': "scale = 'batch'",
    'advantage = "reinforce_plus_plus"\nbaseline = "maxrl"': "'mean'",
    'baseline = "none"\ndynamic_sampling = true': "needs a baseline",
    'corrections = [{name = "icepop", low = 0.5}]': "icepop.* needs high",
    'corrections = [{name = "icepop", low = 5.0, high = 0.5}]': "above high",
    'corrections = [{name = "sequence_tis", low = 0.5, high = 2.0}]': "has no low",
    'corrections = [{name = "token_tis", high = nan}]': "finite number",
    'corrections = [{name = "token_tis", high = -1.0}]': "at least 0",
    'corrections = [{name = "token_tis", high = 2.0}, {name = "token_tis", high = 3.0}]': "twice",
    'corrections = [{name = "sequence_mask", low = 0.5, high = 2.0}, {name = "sequence_mask", low = 0.9, high = 1}]': (
        "'sequence_mask' twice with aggregate = 'geometric'"
    ),
    'corrections = [{name = "tokentis", high = 2.0}]': "token_tis",
    'corrections = [{name = "token_veto", low = 0.1, aggregate = "product"}]': "no aggregate",
    'objective = "policy_gradient"\ncorrections = [{name = "token_tis", high = 2.0}]': "leave out correction",
    'objective = "decoupled_ppo"\ncorrections = [{name = "icepop", low = 0.5, high = 2.0}]': "leave out correction",
    'proximal = "behaviour"\ncorrections = [{name = "token_tis", high = 2.0}]': "leave it out",
    'kl_estimator = "k1"': "'k2' or 'k3', or kl_ratio_weighted",
    'kl_in = "reward"': "set kl_estimator = 'k1'",
    'kl_in = "reward"\nkl_estimator = "k1"\nkl_coef = 0.0': "set kl_coef",
    'kl_in = "reward"\nkl_estimator = "k1"\nkl_ratio_weighted = true': "leave it out",
    'kl_in = "reward"\nkl_estimator = "k1"\ndynamic_sampling = true': "kl_in = 'loss'",
    'baseline = "maxrl"\noverlong_buffer_tokens = 5': "leave out overlong_buffer_tokens",
    "overlong_buffer_tokens = 5000": "at most rollout.max_new_tokens = 4096",
    'quantize = "nf4"': "set lora_rank",
    "pack_multiple = 1000": "must divide",
    'objective = "ppo"': "ppo_clip",
    "std_normalisation = true": "unknown key learner.std_normalisation",
}


def config(tmp_path, learner):
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\npath = "m"\n[learner]\n{learner}\n')
    return load(path)


@pytest.mark.parametrize("learner", REFUSED)
def test_refused_in_one_line(tmp_path, learner):
    with pytest.raises(ConfigError, match=REFUSED[learner]) as refused:
        config(tmp_path, learner)
    assert "\n" not in str(refused.value)
    fields = tomllib.loads(learner)
    # the trainer itself holds to the same rules
    with pytest.raises((ValueError, msgspec.ValidationError, TypeError)):
        TrainerSettings(model="m", constant_tokens=4096, **fields)
        msgspec.convert({"model": "m", "constant_tokens": 4096, **fields}, TrainerSettings, strict=True)


def test_the_trainer_has_every_setting_of_the_config_and_the_same_defaults():
    ours, theirs = Learner().model_dump(), msgspec.to_builtins(TrainerSettings(model="m"))
    own = {"model", "revision", "dtype", "seed", "constant_tokens", "schedule_steps", "credit", "temperature"}
    own |= {"context_tokens"}
    assert theirs.keys() - own == ours.keys()
    for name, value in ours.items():
        assert theirs[name] == value, name


def test_what_the_trainer_gets_from_a_run(tmp_path):
    settings = trainer_settings(config(tmp_path, 'corrections = [{name = "icepop", low = 0.5, high = 5.0}]\nranks = 2'))
    assert [(c.name, c.low, c.high) for c in settings.corrected] == [("icepop", 0.5, 5.0)]
    assert settings.constant_tokens == 4096 and settings.credit == "turn"
    assert msgspec.json.decode(msgspec.json.encode(settings), type=TrainerSettings) == settings, "as ranks get it"
    (only,) = trainer_settings(config(tmp_path, "tis_cap = 3.0")).corrected
    assert (only.name, only.low, only.high) == ("token_tis", None, 3.0)
    assert trainer_settings(config(tmp_path, 'proximal = "behaviour"')).corrected == ()
    assert trainer_settings(config(tmp_path, "corrections = []")).corrected == ()


@pytest.mark.parametrize(
    ("learner", "fused"),
    [
        ("", True), ('objective = "gspo"', False), ('objective = "cispo"', True), ("head_cache_gib = 1.0", False),
        ('corrections = [{name = "sequence_mask", low = 0.99, high = 1.01}]', False),
        ('corrections = [{name = "icepop", low = 0.5, high = 5.0}]', True), ('head = "recompute"', False),
    ],
)  # fmt: skip
def test_the_head_is_fused_where_it_can_be(tmp_path, learner, fused):
    assert trainer_settings(config(tmp_path, learner)).fused_head is fused


NAMES = [name for name, kind in get_type_hints(TrainerSettings).items() if get_origin(kind) is Literal]
NUMBERS = [f.name for f in msgspec.structs.fields(TrainerSettings) if isinstance(f.default, float)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_nobody_knows_is_not_taken_for_the_default(name):
    with pytest.raises(ValueError, match=f"unknown {name} 'grpo'; known: "):
        TrainerSettings(model="m", **{name: "grpo"})


@pytest.mark.parametrize("name", [*NUMBERS, "dual_clip", "kl_ceiling"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_setting_that_is_no_number_is_refused_by_the_trainer_too(name, value):
    with pytest.raises(ValueError, match=f"{name} = (nan|inf)"):
        TrainerSettings(model="m", **{name: value})


def test_what_each_sequence_mask_takes_out_has_a_name_of_its_own(policy_folder):
    masks = [{"name": "sequence_mask", "low": 0.0, "high": high, "aggregate": how}
             for how, high in (("geometric", 1e9), ("product", 0.0))]  # fmt: skip
    numbers = Trainer(settings_for(policy_folder, corrections=masks, kl_coef=0.0)).step(make_samples(8))
    found = {name: v for name, v in numbers.items() if name.startswith("masked_share/")}
    assert found == {"masked_share/sequence_mask": 0.0, "masked_share/sequence_mask_product": 1.0}


OBJECTIVES = ("ppo_clip", "gspo", "cispo", "dppo", "policy_gradient", "decoupled_ppo")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e30, 80.0])
def test_no_objective_makes_a_step_of_what_is_no_number(policy_folder, objective, value):
    fields = {"proximal": "loglinear"} if objective == "decoupled_ppo" else {}
    trainer = Trainer(settings_for(policy_folder, objective=objective, kl_coef=0.0, **fields))
    samples = make_samples(8, seed=3)
    wild = np.where(samples[0].mask, value, 0).astype(np.float32)
    numbers = trainer.step([msgspec.structs.replace(samples[0], logprobs=wild), *samples[1:]])
    assert numbers["applied"] == 1.0 and all(np.isfinite(v) for v in numbers.values())
    assert numbers.get("refused/non_finite", 0.0) == (0.0 if np.isfinite(value) else 1.0)
    assert all(bool(p.isfinite().all()) for _, p in trainer.model.named_masters())


@pytest.mark.parametrize("advantage", ["reinforce_plus_plus", "gae"])
def test_a_policy_that_is_no_number_refuses_the_step(policy_folder, advantage):
    trainer = Trainer(
        settings_for(policy_folder, advantage=advantage, baseline="none", scale="batch", kl_in="reward",
                     kl_estimator="k1", kl_coef=0.1)
    )  # fmt: skip
    with_broken_norm(trainer)
    numbers = trainer.step(make_samples(4))
    assert numbers["applied"] == 0.0 and numbers["refused_step/non_finite_loss"] == 1.0 and trainer.version == 0


def test_a_policy_that_is_no_number_refuses_the_step_with_the_kl_in_the_return(policy_folder):
    trainer = Trainer(settings_for(policy_folder, kl_in="reward", kl_estimator="k1", kl_coef=0.1))
    with_broken_norm(trainer)
    numbers = trainer.step(make_samples(4))
    assert numbers["applied"] == 0.0 and numbers["refused_step/non_finite_loss"] == 1.0


def with_broken_norm(trainer):
    trainer.model.lm.model.norm.weight.data[0] = float("nan")


def test_samples_that_were_cut_off_are_left_out_and_counted(policy_folder):
    samples = [msgspec.structs.replace(s, truncated=s.index == 1) for s in batch("trajectory")]
    numbers = Trainer(settings_for(policy_folder, kl_coef=0.0)).step(samples)
    cut = sum(s.truncated for s in samples)
    assert numbers["truncated_share"] == pytest.approx(cut / len(samples)) and "refused/truncated" not in numbers
    filtered = settings_for(policy_folder, kl_coef=0.0, overlong_filter=True, credit="trajectory")
    numbers = Trainer(filtered).step(samples)
    assert numbers["refused/truncated"] == cut and numbers["samples"] == len(samples) - cut


def test_a_return_below_zero_is_counted_where_the_mean_divides(policy_folder, tmp_path):
    samples = make_samples(8)
    samples = [msgspec.structs.replace(samples[0], ret=-1.0), *samples[1:]]
    numbers = Trainer(settings_for(policy_folder, kl_coef=0.0, baseline="maxrl")).step(samples)
    assert numbers["refused/negative_return"] == 1 and numbers["samples"] == 7 and numbers["applied"] == 1
    path = tmp_path / "run.toml"
    path.write_text('model.path = "m"\nlearner.baseline = "maxrl"\nreward.shape = "milestone"\n')
    with pytest.raises(ConfigError, match="at least 0"):
        load(path)


def test_nothing_is_left_by_dynamic_sampling(policy_folder):
    samples = [msgspec.structs.replace(s, ret=0.3) for s in make_samples(8)]
    numbers = Trainer(settings_for(policy_folder, kl_coef=0.0, dynamic_sampling=True)).step(samples)
    assert numbers["refused/all_equal"] == 8 and numbers["refused_step/nothing_to_train_on"] == 1
    lone = [s for s in make_samples(8) if s.index == 0]
    numbers = Trainer(settings_for(policy_folder, kl_coef=0.0, dynamic_sampling=True)).step(lone)
    assert numbers["refused/singleton"] == 2 and numbers["applied"] == 0
