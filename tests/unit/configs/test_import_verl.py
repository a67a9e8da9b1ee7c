"""verl's options: each becomes what docs/switching.md says, or is told with its reason. Scripts and YAML."""

import pytest

from configs.importing.importer import import_file
from configs.load import ConfigError
from tests.unit.configs.imports import VERL, line, recipe, verl

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}." for part in ("actor", "rollout", "model"))
CORRECTION = "algorithm.rollout_correction."
ALIASES = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
"""Ten thousand thousand things, were they written out."""
GRPO = {"algorithm.adv_estimator": "grpo"}


def test_defaults_of_theirs_are_written_out():
    config, left, toml = recipe(verl())
    learner = config.learner
    assert (learner.advantage, learner.baseline, learner.scale, learner.gae_lambda) == ("gae", "none", "batch", 1.0)
    assert (learner.clip_low, learner.clip_high, learner.dual_clip) == (0.2, 0.2, 3.0)
    assert (learner.entropy_coef, learner.kl_coef, learner.corrections) == (0.0, 0.0, ())
    assert (learner.denominator, learner.weight_decay, learner.activation_checkpointing) == ("token", 0.01, "full")
    assert (config.sampler.order, config.evaluation.greedy) == ("shuffled", True)
    assert "verl's default" in line(toml, "denominator")
    assert left == {}


@pytest.mark.parametrize(
    ("more", "program", "groups", "steps", "staleness"),
    [
        ({}, "verl.trainer.main_ppo", 16, 400, 3),
        ({ACTOR + "ppo_mini_batch_size": "64"}, "verl.trainer.main_ppo", 64, 100, 0),
        ({ACTOR + "ppo_mini_batch_size": "64"}, "verl.experimental.one_step_off_policy.main_ppo", 64, 100, 1),
        ({}, "verl.experimental.fully_async_policy.fully_async_main", 16, 400, 2),
        (
            {"trainer.v1.trainer_mode": "separate_async", "trainer.v1.sampler.max_off_policy_threshold": "3"},
            "verl.trainer.main_ppo", 16, 400, 8,
        ),
    ],
)  # fmt: skip
def test_prompts_become_groups_and_batches_updates(more, program, groups, steps, staleness):
    config, _, toml = recipe(verl(more, program))
    assert (config.sampler.groups_per_step, config.sampler.group_size) == (groups, 8)
    assert (config.run.steps, config.sampler.max_staleness) == (steps, staleness)
    assert "100 rollout batches" in line(toml, "steps")


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (GRPO, {"advantage": "group", "baseline": "mean", "scale": "group"}),
        ({**GRPO, "algorithm.norm_adv_by_std_in_grpo": "False"}, {"scale": "none"}),
        ({"algorithm.adv_estimator": "rloo"}, {"advantage": "group", "baseline": "leave_one_out", "scale": "none"}),
        ({"algorithm.adv_estimator": "reinforce_plus_plus"}, {"advantage": "reinforce_plus_plus", "baseline": "none"}),
        ({"algorithm.adv_estimator": "reinforce_plus_plus_baseline"}, {"baseline": "mean", "scale": "batch"}),
        ({"algorithm.lam": "0.95", "algorithm.gamma": "0.99"}, {"gae_lambda": 0.95, "token_gamma": 0.99}),
        ({**GRPO, ACTOR + "policy_loss.loss_mode": "gspo"}, {"objective": "gspo", "dual_clip": None}),
        ({**GRPO, ACTOR + "policy_loss.loss_mode": "cispo"}, {"objective": "cispo", "clip_low": 1.0}),
        ({ACTOR + "policy_loss.loss_mode": "dppo_tv"}, {"objective": "dppo"}),
        ({ACTOR + "clip_ratio": "0.3"}, {"clip_low": 0.3, "clip_high": 0.3}),
        ({ACTOR + "clip_ratio_low": "0.1", ACTOR + "clip_ratio_high": "0.28"}, {"clip_low": 0.1, "clip_high": 0.28}),
        ({ACTOR + "use_kl_loss": "True"}, {"kl_coef": 0.001, "kl_estimator": "k3", "kl_ceiling": 10.0}),
        ({ACTOR + "use_kl_loss": "True", ACTOR + "kl_loss_type": "mse"}, {"kl_estimator": "k2", "kl_ceiling": None}),
        ({ACTOR + "use_kl_loss": "True", ACTOR + "kl_loss_type": "k3+"}, {"kl_estimator": "k2"}),
        ({"algorithm.use_kl_in_reward": "True"}, {"kl_in": "reward", "kl_estimator": "k1", "kl_coef": 0.001}),
        ({ACTOR + "loss_agg_mode": "seq-mean-token-mean"}, {"denominator": "rollout"}),
        ({ACTOR + "loss_agg_mode": "seq-mean-token-sum-norm"}, {"denominator": "constant"}),
        ({CORRECTION + "bypass_mode": "true"}, {"proximal": "behaviour", "corrections": ()}),
        (
            {CORRECTION + "bypass_mode": "true", CORRECTION + "loss_type": "reinforce"},
            {"objective": "policy_gradient", "dual_clip": None},
        ),
        ({"trainer.n_gpus_per_node": "4", "trainer.nnodes": "1"}, {"ranks": 4}),
        ({ACTOR + "fsdp_config.optimizer_offload": "True"}, {"cpu_offload": True}),
        ({MODEL + "lora_rank": "32"}, {"lora_rank": 32, "lora_alpha": 16.0}),
        ({ACTOR + "optim.lr_warmup_steps_ratio": "0.1"}, {"warmup_steps": 40}),
        ({ACTOR + "optim.betas": "'[0.9, 0.99]'"}, {"betas": (0.9, 0.99)}),
        ({"+algorithm.filter_groups.enable": "True", **GRPO}, {"dynamic_sampling": True}),
        (
            {"+reward_model.reward_kwargs.overlong_buffer_cfg.enable": "True",
             "+reward_model.reward_kwargs.overlong_buffer_cfg.len": "512"},
            {"overlong_buffer_tokens": 512},
        ),
    ],
)  # fmt: skip
def test_the_learner_is_theirs(more, wanted):
    config, _, _ = recipe(verl(more))
    assert {name: getattr(config.learner, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"rollout_is": "token"}, ("token_tis", None, 2.0)),
        ({"rollout_is": "token", "rollout_is_threshold": "'0.5_5.0'"}, ("icepop", 0.5, 5.0)),
        ({"rollout_is": "sequence", "rollout_is_threshold": "3.0"}, ("sequence_tis", None, 3.0)),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "'0.5_4.0'"}, ("token_mask", 0.25, 2.0)),
        ({"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "'0.5_4.0'"}, ("sequence_mask", 0.25, 2.0)),
    ],
)
def test_corrections(more, wanted):
    config, _, toml = recipe(verl({CORRECTION + name: value for name, value in more.items()}))
    (one,) = config.learner.corrections
    assert (one.name, one.low, one.high) == wanted
    assert ("inverse ratio" in line(toml, "corrections")) == ("rollout_rs" in more)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"algorithm.adv_estimator": "remax"}, "algorithm.adv_estimator=remax"),
        ({ACTOR + "policy_loss.loss_mode": "sapo"}, ACTOR + "policy_loss.loss_mode=sapo"),
        ({ACTOR + "loss_agg_mode": "seq-mean-token-sum"}, ACTOR + "loss_agg_mode=seq-mean-token-sum"),
        ({CORRECTION + "rollout_rs": "seq_max_k2"}, CORRECTION + "rollout_rs=seq_max_k2"),
        ({"data.train_files": "$HOME/x.parquet"}, "data.train_files=$HOME/x.parquet"),
        ({"data.train_files": "/d/x.parquet"}, "data.train_files=/d/x.parquet"),
        ({"trainer.total_epochs": "3"}, "trainer.total_epochs=3"),
        ({ACTOR + "use_kl_loss": "maybe"}, ACTOR + "use_kl_loss=maybe"),
        ({"trainer.nnodes": "2"}, "trainer.nnodes=2"),
        ({"++a.b.c": "2"}, "a.b.c=2"),
        ({ACTOR + "ulysses_sequence_parallel_size": "2"}, ACTOR + "ulysses_sequence_parallel_size=2"),  # beside gae
        ({ROLLOUT + "temperature": "0"}, ROLLOUT + "temperature=0"),
    ],
)
def test_what_is_not_carried_over_has_its_reason(more, what):
    _, left, toml = recipe(verl(more))
    assert left[what]
    assert f"# {what} (line " in toml


def test_the_ratio_that_never_clips_is_told():
    _, _, toml = recipe(verl())
    assert '"behaviour" clips' in line(toml, "proximal")


@pytest.mark.parametrize("length", ["$LENGTH", "long"])
def test_an_option_without_a_usable_value_sets_nothing(length):
    config, left, _ = recipe(verl({"data.max_response_length": length}))
    assert config.rollout.max_new_tokens == 4096
    assert "rollout.max_new_tokens" in left[f"data.max_response_length={length}"]


def test_a_yaml_file_is_read_as_overrides_are():
    pytest.importorskip("yaml")
    tree: dict = {}
    for name, value in {**VERL, **GRPO, ROLLOUT + "top_k": "-1"}.items():
        *tables, leaf = name.split(".")
        place = tree
        for table in tables:
            place = place.setdefault(table, {})
        place[leaf] = int(value) if value.lstrip("-").isdigit() else value
    import yaml

    text = yaml.safe_dump(
        {"defaults": ["ppo_trainer", "_self_"], **tree, "trainer": {**tree["trainer"], "nnodes": None}}
    )
    config, left, _ = recipe(text, "mine.yaml")
    script, _, _ = recipe(verl({**GRPO, ROLLOUT + "top_k": "-1"}), "mine.sh")
    assert config.model_dump(exclude={"sampler": {"max_staleness"}}) == script.model_dump(
        exclude={"sampler": {"max_staleness"}}
    )
    assert list(left) == ["defaults=[ppo_trainer, _self_]"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "not valid YAML (line 2)"),
        ("- a\n- b\n", "no table of options"),
        ("a: 1\n", "no option of verl found"),
        ("trainer: &t\n  x: *t\n", "inside each other"),
        ("a: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
        ("x: " + "[" * 1200, "not valid YAML"),
        (f"a: &a [x, x]\n{ALIASES}", "no option of verl found"),
    ],
)
def test_other_yaml_is_refused_in_one_line(tmp_path, text, said):
    pytest.importorskip("yaml")
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        import_file(path)
    assert said in str(error.value) and "\n" not in str(error.value)
