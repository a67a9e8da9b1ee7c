"""`up RECIPE --dry-run`: what a recipe needs and this machine lacks is said in one line, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from configs.load import load
from runners.preflight import check_engine, check_lengths, check_model, check_weights
from runners.usage import UsageError
from tests.unit.runners.test_bad_input import recipe
from tests.unit.runners.typed import ROOT, kernelmill, refused

RECIPES = [p for p in sorted((ROOT / "configs").glob("*.toml")) if "sft" not in p.stem]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_or_says_what_is_missing(path):
    done = kernelmill("up", path, "--dry-run")
    if done.returncode:
        refused(done)
        assert any(what in done.stderr for what in ("model.path", "vllm is not installed", "no GPU to judge on"))
    else:
        assert '"model"' in done.stdout


@pytest.mark.parametrize("name", [path.stem for path in RECIPES if path.stem != "demo"])
def test_a_gpu_recipe_says_which_model_is_missing(name):
    config = load(ROOT / "configs" / f"{name}.toml", ["model.path='models/none-of-these'"])
    with pytest.raises(UsageError, match=r"models/none-of-these.*there is no such folder"):
        check_model(config, name)
    assert config.judge.device_class == "gpu" and config.judge.speed == "measured"


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has a GPU")
@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_transports_between_gpus_are_refused_without_one(tmp_path, transport):
    done = kernelmill(
        "up", recipe(tmp_path), f"weights.transport={transport}", "learner.device=cuda", "rollout.engine=vllm",
        "--dry-run",
    )  # fmt: skip
    refused(done)
    config = load(ROOT / "configs" / "qwen3-0.6b.toml", [f"weights.transport={transport}"])
    with pytest.raises(UsageError, match=f"'{transport}' hands weights over between GPUs, but this machine has none"):
        check_weights(config)


def test_vllm_that_is_not_installed_is_refused(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="vllm is not installed here"):
        check_engine(load(ROOT / "configs" / "qwen3-0.6b.toml"))


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has a GPU")
def test_judging_on_a_gpu_is_refused_without_one(tmp_path):
    measured = ("judge.device_class=h100", "judge.speed=measured")
    done = kernelmill("up", recipe(tmp_path), *measured, "--dry-run")
    refused(done)
    assert "no GPU to judge on" in done.stderr
    assert kernelmill("up", recipe(tmp_path), *measured, "local.evaluators=0", "--dry-run").returncode == 0


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_what_defines_a_run_is_the_same_after_json(path):
    """Actors compare it with what the first one wrote down."""
    identity = load(path, ["judge.device_class=gpu", "judge.speed=measured"]).identity()
    assert json.loads(json.dumps(identity)) == identity


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_where_the_card_is_shared_vllm_is_told_its_cache(path):
    """It asserts when another process gives memory back while it measures the card's."""
    config = load(path)
    if config.rollout.engine != "vllm":
        return
    learner = set(range(config.learner.ranks)) if config.learner.device != "cpu" else set()
    own = set(config.rollout.cards)
    shared = not own or bool(own & (learner | set(config.judge.cards)))
    assert (config.rollout.vllm.cache_gb > 0) == shared


MULTI_TURN = {
    "rollouts": 1000, "rollout batch": 4, "samples": 8, "global batch": 32, "tokens a card": 4096, "turns": 3,
    "learner cards": 4, "rollout cards": 2, "lr": 1e-6, "kl": 0.01, "entropy": 0.001, "gamma": 0.4, "save every": 50,
}  # fmt: skip
REFERENCE = {
    "qwen3-8b": MULTI_TURN,
    "kernelllm-8b": MULTI_TURN,
    "qwen3-8b-small": MULTI_TURN | {"samples": 4, "global batch": 16},
    "qwen3-8b-single-turn": MULTI_TURN
    | {"rollouts": 500, "rollout batch": 2, "samples": 4, "global batch": 16, "tokens a card": 2048, "turns": 1},
}
"""The reference setups' numbers, by recipe."""


@pytest.mark.parametrize("name", REFERENCE)
def test_a_recipe_carries_its_references_numbers(name):
    config, want = load(ROOT / "configs" / f"{name}.toml"), REFERENCE[name]
    sampler, learner, episodes = config.sampler, config.learner, config.episodes
    assert sampler.group_size == want["samples"]
    assert sampler.groups_per_step * sampler.group_size == want["global batch"]
    # A rollout is no unit here: as many tasks are played in all, by updates of the global batch.
    assert config.run.steps * sampler.groups_per_step == want["rollouts"] * want["rollout batch"]
    assert learner.max_tokens_per_rank == want["tokens a card"]
    assert (learner.ranks, len(config.rollout.cards)) == (want["learner cards"], want["rollout cards"])
    assert not set(config.rollout.cards) & set(range(learner.ranks)) and config.local.generators == 2
    assert (learner.lr, learner.kl_coef, learner.entropy_coef) == (want["lr"], want["kl"], want["entropy"])
    assert (episodes.max_turns, episodes.gamma) == (want["turns"], want["gamma"])
    assert config.checkpoints.every_steps == want["save every"]
    assert all(source.path.endswith("KernelBench") for source in (*config.tasks.train, *config.tasks.heldout))
    assert {source.split for source in config.tasks.train} == {"train"}


def test_runs_of_the_recipes_share_no_names():
    configs = [load(path) for path in RECIPES]
    assert len({config.run.name for config in configs}) == len(configs)
    folders = [config.weights.folder for config in configs if config.weights.folder]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize(("context", "told"), [(8192, False), (8193, True), (0, True)])
def test_rows_beyond_the_packing_budget_are_told(tmp_path, capsys, context, told):
    config = load(ROOT / "configs" / "demo.toml", [f"model.context_tokens={context}"])
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40960}')
    check_lengths(config, tmp_path, "demo.toml")
    said = capsys.readouterr().err
    assert bool(said) == told
    assert not told or (f"may have {context or 40960} tokens" in said and "max_tokens_per_rank = 8192" in said)


def test_the_readmes_recipe_is_one_for_its_model(tmp_path):
    """It extends the demo's, whose lengths and learning rate are for a policy a hundred times smaller."""
    text = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('"demo.toml"', f'"{ROOT}/configs/demo.toml"'))
    config = load(path)
    assert config.learner.lr <= 1e-5 and config.rollout.max_new_tokens >= 2048 and config.learner.device == "auto"
    assert config.learner.max_tokens_per_rank >= 3 * config.rollout.max_new_tokens
