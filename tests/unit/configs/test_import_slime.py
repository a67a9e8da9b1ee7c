"""slime's and TritonForge's options: each becomes what docs/switching.md says, or is told with its reason."""

import pytest

from tests.unit.configs.imports import line, recipe, slime


def settings(config, *names):
    found = []
    for name in names:
        value = config
        for key in name.split("."):
            value = getattr(value, key)
        found.append(value)
    return tuple(found)


def test_defaults_of_theirs_are_written_out():
    config, left, toml = recipe(slime())
    assert settings(
        config, "learner.clip_low", "learner.clip_high", "learner.entropy_coef", "learner.kl_coef",
        "learner.corrections",
        "learner.denominator", "learner.weight_decay", "learner.proximal", "sampler.order", "episodes.max_turns",
    ) == (0.2, 0.2, 0.0, 0.0, (), "rollout", 0.01, "recompute", "sequential", 1)  # fmt: skip
    assert settings(config, "learner.advantage", "learner.baseline", "learner.scale", "episodes.credit") == (
        "group", "mean", "group", "trajectory",
    )  # fmt: skip
    assert "slime's default" in line(toml, "entropy_coef")
    assert left == {}


@pytest.mark.parametrize(
    ("more", "groups", "steps", "staleness"),
    [
        ({}, 16, 100, 0),
        ({"global_batch_size": 32}, 4, 400, 3),
        ({"global_batch_size": None, "num_steps_per_rollout": 2}, 8, 200, 1),
        ({"program": "train_async.py"}, 16, 100, 1),
        ({"program": "SLIME/train_async.py", "global_batch_size": 64}, 8, 200, 3),
    ],
)
def test_batches_of_samples_become_groups_and_updates(more, groups, steps, staleness):
    config, _, toml = recipe(slime(**more))
    found = settings(config, "sampler.groups_per_step", "sampler.group_size", "run.steps", "sampler.max_staleness")
    assert found == (groups, 8, steps, staleness)
    assert f"{groups * 8} samples / 8 of a group" in line(toml, "groups_per_step")
    assert "100 rollout batches" in line(toml, "steps")


def test_intervals_count_updates():
    config, _, toml = recipe(slime(global_batch_size=64, save_interval=10, eval_interval=5))
    assert settings(config, "checkpoints.every_steps", "evaluation.every_steps") == (20, 10)
    assert "10 rollout batches, 2 to each" in toml


def test_samples_that_are_no_whole_groups_are_not_rounded():
    config, left, _ = recipe(slime(global_batch_size=100))
    assert config.sampler.groups_per_step == 8  # ours
    assert "no whole number of groups of 8" in left["--global-batch-size 100"]
    assert "set run.steps" in left["--num-rollout 100"]


def test_a_default_of_theirs_that_ours_refuses_is_told():
    config, left, _ = recipe(slime(without=["n-samples-per-prompt"], global_batch_size=16))
    assert config.sampler.group_size == 8
    assert "a group of one" in left["slime's default of n-samples-per-prompt, 1"]


def test_a_command_that_is_cut_off_by_a_comment_is_told():
    text = "python3 train.py --lr 1e-6 --num-rollout 10 \\\n  # --seed 1 \\\n  --eps-clip 0.1\n"
    _, left, _ = recipe(text)
    assert "a command of its own" in left["--eps-clip 0.1"]


def test_of_several_launches_the_one_with_the_most_options_is_read():
    config, left, _ = recipe("python3 train.py --lr 1 --num-rollout 3\n" + slime(lr="2e-6"))
    assert config.learner.lr == 2e-6
    assert "with the most options" in left["train.py"]


@pytest.mark.parametrize("name", ["global_batch_size", "n_samples_per_prompt", "rollout_batch_size"])
def test_nothing_is_computed_from_what_is_unknown(name):
    config, left, _ = recipe(slime(save_interval=5, **{name: "${SIZE}"}))
    assert settings(config, "sampler.groups_per_step", "run.steps", "checkpoints.every_steps") == (8, 100, 10)
    why = left[f"--{name.replace('_', '-')} ${{SIZE}}"]
    assert "SIZE is set nowhere in the script" in why and "sampler.groups_per_step" in why
    assert "set run.steps" in left["--num-rollout 100"]
    assert "stays at 2" in left["sampler.max_staleness"]


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ({"eps_clip": "$X"}, "learner.clip_low", 0.2),
        ({"eps_clip": "$X"}, "learner.clip_high", 0.28),
        ({"kl_loss_coef": "$X", "use_kl_loss": True}, "learner.kl_coef", 0.01),
        ({"entropy_coef": "many"}, "learner.entropy_coef", 0.001),
        ({"lr": "inf"}, "learner.lr", 1e-6),
        ({"actor_num_gpus_per_node": "$(nproc)"}, "learner.ranks", 1),
        ({"save_interval": "$X"}, "checkpoints.every_steps", 10),
    ],
)
def test_an_option_without_a_usable_value_sets_nothing_and_says_what_to_set(more, key, value):
    config, left, _ = recipe(slime(**more))
    assert settings(config, key) == (value,)
    name = next(iter(more)).replace("_", "-")
    assert f"{key}" in next(why for what, why in left.items() if what.startswith(f"--{name} "))


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"advantage_estimator": "gspo"}, {"objective": "gspo", "advantage": "group", "scale": "group"}),
        ({"advantage_estimator": "cispo"}, {"objective": "cispo", "clip_low": 1.0}),
        ({"disable_grpo_std_normalization": True}, {"scale": "none", "baseline": "mean"}),
        ({"disable_rewards_normalization": True}, {"scale": "none", "baseline": "none"}),
        (
            {"advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True, "gamma": 0.99},
            {"advantage": "reinforce_plus_plus", "baseline": "none", "scale": "batch", "token_gamma": 0.99},
        ),
        ({"advantage_estimator": "reinforce_plus_plus"}, {"scale": "none"}),
        (
            {"advantage_estimator": "reinforce_plus_plus_baseline", "normalize_advantages": True},
            {"advantage": "reinforce_plus_plus", "baseline": "mean", "scale": "batch"},
        ),
        (
            {"advantage_estimator": "ppo", "lambd": 0.9},
            {"advantage": "gae", "baseline": "none", "gae_lambda": 0.9, "token_gamma": 1.0},
        ),
        ({"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "k2"}, {"kl_coef": 0.01, "kl_estimator": "k2"}),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl"},
            {"kl_coef": 0.01, "kl_estimator": "k3", "kl_ceiling": 10.0},
        ),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.01, "use_unbiased_kl": True},
            {"kl_estimator": "k1", "kl_ratio_weighted": True},
        ),
        (
            {"kl_coef": 0.02, "advantage_estimator": "ppo"},
            {"kl_in": "reward", "kl_estimator": "k1", "kl_coef": 0.02},
        ),
        ({"kl_coef": 0.02}, {"kl_coef": 0.0}),
        ({"eps_clip": 0.1, "eps_clip_high": 0.3, "eps_clip_c": 3}, {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 3}),
        ({"use_rollout_logprobs": True}, {"proximal": "behaviour", "corrections": ()}),
        ({"keep_old_actor": True}, {"proximal": "behaviour"}),
        ({"calculate_per_token_loss": True}, {"denominator": "token"}),
        ({"max_tokens_per_gpu": 9216, "recompute_granularity": "full"}, {"max_tokens_per_rank": 9216}),
        ({"recompute_granularity": "full"}, {"activation_checkpointing": "full"}),
        ({"optimizer_cpu_offload": True, "context_parallel_size": 2}, {"cpu_offload": True, "context_parallel": True}),
        ({"lr": "2e-6", "weight_decay": 0.1}, {"lr": 2e-6, "weight_decay": 0.1}),
        ({"adam_beta2": 0.98}, {"betas": (0.9, 0.98)}),
        ({"actor_num_gpus_per_node": 4, "actor_num_nodes": 1}, {"ranks": 4}),
        ({"dynamic_sampling_filter_path": "slime.x.check_reward_nonzero_std"}, {"dynamic_sampling": True}),
    ],
)  # fmt: skip
def test_the_learner_is_theirs(more, wanted):
    config, _, _ = recipe(slime(**more))
    assert {name: getattr(config.learner, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"use_tis": True}, ("token_tis", None, 2.0)),
        ({"use_tis": True, "tis_clip": 3, "tis_clip_low": 0.5}, ("token_tis", 0.5, 3.0)),
        (
            {"use_tis": True, "tis_clip": 5, "tis_clip_low": 0.5, "custom_tis_function_path": "a.icepop_function"},
            ("icepop", 0.5, 5.0),
        ),
        ({"use_opsm": True}, ("off_policy_sequence_mask", None, 1e-4)),
    ],
)
def test_corrections(more, wanted):
    config, _, _ = recipe(slime(**more))
    (one,) = config.learner.corrections
    assert (one.name, one.low, one.high) == wanted


def test_what_has_no_estimate_in_the_loss_is_told():
    config, _, toml = recipe(slime(use_kl_loss=True, kl_loss_coef=0.01))  # slime's default is k1
    assert config.learner.kl_estimator == "k3"
    assert "gradient of mean zero" in line(toml, "kl_estimator")


def test_tritonforge_has_turns_a_discount_over_them_and_its_own_normalization():
    text = slime(
        program="SLIME/train_async.py", rm_type="kernelbench_multiturn", max_turns=4, gamma=0.5, num_epoch=1000,
        disable_rewards_normalization=True, prompt_data="/d/kernels.jsonl", agent_rollout_buffer_url="http://h:1",
        rollout_function_path="slime.rollout.agent_rollout.generate_rollout", actor_num_gpus_per_node=4,
        rollout_num_gpus=2, rollout_num_gpus_per_engine=1, load="/m/mcore", wandb_key="very-secret",
    )  # fmt: skip
    config, left, toml = recipe(text)
    assert settings(config, "episodes.max_turns", "episodes.gamma", "learner.baseline", "reward.shape") == (
        4, 0.5, "mean", "graded",
    )  # fmt: skip
    assert settings(config, "rollout.cards", "local.generators", "learner.ranks") == ((4, 5), 2, 4)
    assert config.tasks.train[0].path == "/d/kernels.jsonl"
    assert "prompt is ignored" in line(toml, "train")
    assert {"--num-epoch 1000", "--load /m/mcore", "--wandb-key ..."} < set(left)
    assert "very-secret" not in toml + str(left)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"advantage_estimator": "on_policy"}, "--advantage-estimator on_policy"),
        ({"rollout_function_path": "x.fully_async_rollout.f"}, "--rollout-function-path x.fully_async_rollout.f"),
        ({"dynamic_sampling_filter_path": "mine.f"}, "--dynamic-sampling-filter-path mine.f"),
        ({"use_tis": True, "custom_tis_function_path": "mine.f"}, "--custom-tis-function-path mine.f"),
        ({"optimizer": "sgd"}, "--optimizer sgd"),
        ({"actor_num_nodes": 2, "actor_num_gpus_per_node": 8}, "--actor-num-nodes 2"),
        ({"prompt_data": "/d/x.parquet"}, "--prompt-data /d/x.parquet"),
        ({"n_samples_per_prompt": 1, "global_batch_size": 16}, "--n-samples-per-prompt 1"),
        ({"rollout_temperature": 0}, "--rollout-temperature 0"),
        ({"context_parallel_size": 2, "advantage_estimator": "gspo"}, "--context-parallel-size 2"),
        ({"rollout_max_context_len": 100}, "--rollout-max-context-len 100"),
        ({"num_layers": 36}, "--num-layers 36"),
        ({"something_new": 1}, "--something-new 1"),
        ({"colocate": True, "actor_num_gpus_per_node": 8}, "--colocate"),
    ],
)
def test_what_is_not_carried_over_has_its_reason(more, what):
    _, left, toml = recipe(slime(**more))
    assert left[what]
    assert f"# {what} (line " in toml


def test_one_card_for_both():
    config, _, _ = recipe(slime(colocate=True, actor_num_gpus_per_node=1, actor_num_nodes=1))
    assert settings(config, "weights.transport", "rollout.vllm.cache_gb") == ("ipc", 8.0)


def test_a_default_of_the_environment_is_named():
    _, _, toml = recipe(slime(lr="${LR:-3e-6}"))
    assert "lr = 3e-6  # --lr 3e-6: with the script's default of LR" in toml


def test_a_model_that_the_script_does_not_tell_is_to_be_written():
    config, _, toml = recipe(slime(hf_checkpoint="$HOME/m"))
    assert config.model.path == "$HOME/m" and "write the folder here" in line(toml, "path")
    config, _, toml = recipe(slime(without=["hf-checkpoint"]))
    assert config.model.path == "CHANGE/ME" and "write its folder here" in line(toml, "path")
