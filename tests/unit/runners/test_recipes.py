"""`up RECIPE --dry-run`: what a recipe needs and this machine lacks is said in one line, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from configs.load import load
from runners.preflight import check_engine, check_model, check_weights
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


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-8b", "kernelllm-8b"])
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


def test_the_readmes_recipe_is_one_for_its_model(tmp_path):
    """It extends the demo's, whose lengths and learning rate are for a policy a hundred times smaller."""
    text = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('"demo.toml"', f'"{ROOT}/configs/demo.toml"'))
    config = load(path)
    assert config.learner.lr <= 1e-5 and config.rollout.max_new_tokens >= 2048 and config.learner.device == "auto"
    assert config.learner.max_tokens_per_rank >= 3 * config.rollout.max_new_tokens
