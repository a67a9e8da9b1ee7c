import re
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

from configs.load import ConfigError, load, load_sft
from configs.schema import RunConfig
from core.evaluation.settings import JudgeSettings

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
RECIPES = sorted(CONFIGS.glob("*.toml"))


def write(folder, text, name="run.toml"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_loads(path):
    (load_sft if "sft" in path.stem else load)(path)


def test_overrides_win_over_the_file_and_the_file_over_its_base(tmp_path):
    write(tmp_path, 'model.path = "m"\nrun.steps = 5\nsampler.group_size = 4\nlearner.lr = 1e-5', "base.toml")
    path = write(tmp_path, 'extends = "base.toml"\n[sampler]\ngroup_size = 6\n')
    config = load(path, ["learner.lr=2e-4", "run.name=mine"])
    assert (config.run.steps, config.sampler.group_size, config.learner.lr) == (5, 6, 2e-4)
    assert config.run.name == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model.path = "m"\nlerner.lr = 1', "unknown key lerner; did you mean learner?"),
        ('model.path = "m"\nlearner.learning_rate = 1', "unknown key learner.learning_rate"),
        ('model.path = "m"\nsampler.group_sise = 1', "did you mean sampler.group_size?"),
        ('model.path = "m"\nlearner.group_size = 1', "did you mean sampler.group_size?"),
        ('model.path = "m"\n[[tasks.train]]\nkind = "starter"\nspilt = "all"', "did you mean tasks.train[0].split?"),
        ("run.steps = 3", "model: is not set; wanted a table of path, revision"),
        (
            'model.path = "m"\nrun.steps = 0',
            "run.steps: wanted a whole number, at least 1, at most 1,000,000,000, got 0",
        ),
        ('model.path = "m"\nrun.steps = "many"', "run.steps: wanted a whole number, "),
        ('model.path = "m"\nsampler.group_size = 1', "compares within a group"),
        ('model.path = "m"\njudge.speed = "measured"', "needs a GPU"),
        ('model.path = "m"\nrollout.temperature = 0', "can't be trained on"),
        (
            'model.path = "m"\nrollout.temperature = 1e9',
            "rollout.temperature: wanted a number, at least 0, at most 10",
        ),
        ('model.path = "m"\nrollout.temperature = 0.005', "samples at 0.01 at least"),
        ('model.path = "m"\nrollout.top_k = 1', "can't be trained on"),
        (
            'model.path = "m"\nrun.name = "Has Capitals"',
            "run.name: wanted 1 to 41 of a-z, 0-9 and '-', the first no '-', got 'Has Capitals'",
        ),
        ('model.path = "m"\n[[tasks.train]]\nkind = "folder"', "needs a path"),
        ("model.path = ", "not valid TOML"),
        ('extends = "run.toml"', "extends itself"),
        ('extends = "gone.toml"', "no such config"),
    ],
)
def test_bad_configs_say_what_is_wrong_in_one_line(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value) and "the config:" not in str(error.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    path = write(tmp_path, 'model.path = "m"')
    with pytest.raises(ConfigError) as caught:
        load(path, ["learner.lrr=1", "runn.steps=2"])
    assert "learner.lrr; did you mean learner.lr? Also runn; did you mean run?" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(path, ["run.steps=0", "judge.wall_s=0.1", "learner.ranks=0", "bus.beat_s=0", "judge.draws=0"])
    text = str(caught.value)
    assert all(name in text for name in ("run.steps: ", "; also judge.wall_s: ", "bus.beat_s: ", "(and 1 more)"))


@pytest.mark.parametrize("override", ["learner.lr", "=3", "model.path.x=1"])
def test_bad_overrides_are_refused(tmp_path, override):
    path = write(tmp_path, 'model.path = "m"')
    with pytest.raises(ConfigError, match="override"):
        load(path, [override])


def test_a_missing_recipe_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean configs/demo.toml"):
        load(tmp_path / "demoo.toml")


def test_the_identity_ignores_what_may_differ_between_actors(tmp_path):
    path = write(tmp_path, 'model.path = "m"')
    same = load(path, ["rollout.groups_in_flight=2", "judge.workers=7", "learner.ranks=2", "run.steps=7"])
    other = load(path, ["episodes.gamma=0.5"])
    assert load(path).identity_hash() == same.identity_hash() != other.identity_hash()


@pytest.mark.parametrize("text", ["", "{bad", "[1]", "3", "null", '{"run": \xff}'])
def test_a_broken_resolved_config_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="JSON") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("context", [1, 319, 320])
def test_a_context_that_an_answer_fills_is_refused(context):
    """Every episode would end at its first prompt. 0 is the model's own limit, which the preflight compares."""
    said = rf"model.context_tokens = {context} .* more than rollout.max_new_tokens = 320; 0 takes"
    with pytest.raises(ConfigError, match=said):
        load("configs/demo.toml", [f"model.context_tokens={context}"])
    for room in (0, 321):
        assert load("configs/demo.toml", [f"model.context_tokens={room}"]).model.context_tokens == room


def kinds_of(annotation):
    return {annotation}.union(*(kinds_of(part) for part in get_args(annotation)))


def fields_of_numbers(kind, prefix=""):
    """(dotted name, its types) of all fields made of numbers and of no booleans, in all sections."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields_of_numbers(field.annotation, f"{prefix}{name}.")
        elif (kinds := kinds_of(field.annotation)) & {int, float} and bool not in kinds:
            yield prefix + name, kinds


@pytest.mark.parametrize("value", ["true", "false"])
def test_no_boolean_stands_for_a_number(value):
    """In each field of numbers; where several are wanted, as one of them too."""
    fields = list(fields_of_numbers(RunConfig))
    assert {"run.steps", "learner.lr", "learner.dual_clip", "judge.cards"} <= {name for name, _ in fields}
    for name, kinds in fields:
        several = any(get_origin(part) is tuple for part in kinds)
        for written in (value, f"[{value}, 1]") if several else (value,):
            with pytest.raises(ConfigError, match=rf"{re.escape(name)}: wanted a number, got {value}$"):
                load("configs/demo.toml", [f"{name}={written}"])
    with pytest.raises(ConfigError, match=r"tasks.train\[0\].seed: wanted a number"):
        load("configs/demo.toml", [f'tasks.train=[{{kind = "starter", seed = {value}}}]'])
    with pytest.raises(ConfigError, match=r"steps: wanted a number"):
        load_sft("configs/demo-sft.toml", [f"steps={value}"])


def test_numbers_are_read_from_what_people_write():
    written = ["run.steps='7'", "learner.lr=1", "judge.wall_s='5'", "judge.cache=1", "learner.betas=[0, '0.5']"]
    config = load("configs/demo.toml", written)
    assert (config.run.steps, config.learner.lr, config.judge.wall_s) == (7, 1.0, 5.0)
    assert config.judge.cache is True and config.learner.betas == (0.0, 0.5)


@pytest.mark.parametrize(
    ("name", "wrong", "near"),
    [("draws", 10**6, 64), ("draws", 65, 64), ("draws", 1, 2)]
    + [
        (name, wrong, near)
        for name in ("wall_s", "compile_wall_s", "gpu_wall_s")
        for wrong, near in ((1e6, 1e5), (0.9, 1.0))
    ],
)
def test_what_the_judge_would_refuse_its_config_refuses(name, wrong, near):
    """Else evaluators die of it at their start."""
    with pytest.raises(ConfigError, match=rf"judge.{name}: wanted a .*, got {wrong}$"):
        load("configs/demo.toml", [f"judge.{name}={wrong}"])
    with pytest.raises(ValueError, match=f"^{name} = {wrong}: "):
        JudgeSettings(**{name: wrong})
    load("configs/demo.toml", [f"judge.{name}={near}"])
    JudgeSettings(**{name: near})


def numbers(kind, prefix=""):
    """Dotted names of the fields that hold a float, in all sections."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from numbers(field.annotation, f"{prefix}{name}.")
        elif field.annotation in (float, float | None):
            yield prefix + name


@pytest.mark.parametrize("name", numbers(RunConfig))
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_number_of_a_config_may_be_beyond_all_bounds(name, value):
    with pytest.raises(ConfigError, match=re.escape(name)):
        load("configs/demo.toml", [f"{name}={value}"])


@pytest.mark.parametrize("target", ["foo", "cuda", "cuda:12", "cuda:x", "hip:90", "sm_90"])
def test_a_target_that_no_kernel_is_compiled_for_is_refused(target):
    with pytest.raises(ConfigError, match=r"target .*wanted cuda:"):
        load("configs/demo.toml", [f"judge.target={target}"])


def test_shipped_recipes_find_their_policy_from_anywhere(tmp_path, monkeypatch):
    """As they are, and extended by a recipe elsewhere; what that one names is its own affair."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(f'extends = "{CONFIGS}/demo.toml"\n[run]\nsteps = 3\n')
    (tmp_path / "other.toml").write_text('extends = "mine.toml"\n[model]\npath = "configs/policies/demo"\n')
    for path in (CONFIGS / "demo.toml", "mine.toml"):
        assert load(path).model.path == str(CONFIGS / "policies" / "demo")
    assert load("other.toml").model.path == "configs/policies/demo"
    monkeypatch.chdir(CONFIGS.parent)
    assert load("configs/demo.toml").model.path == "configs/policies/demo", "one run, one config, wherever it began"


def test_a_run_is_the_same_wherever_it_is_taken_up(tmp_path, monkeypatch):
    """Its config.json names the policy as it was seen from where it began."""
    monkeypatch.chdir(CONFIGS.parent)
    begun = load("configs/demo.toml")
    (tmp_path / "config.json").write_text(begun.model_dump_json())
    monkeypatch.chdir(tmp_path)
    elsewhere, resumed = load(CONFIGS / "demo.toml"), load("config.json")
    assert resumed.model.path == elsewhere.model.path == str(CONFIGS / "policies" / "demo") != begun.model.path
    assert begun.identity() == elsewhere.identity() == resumed.identity()
    other = load("config.json", [f"model.path={tmp_path}"])
    assert other.identity() != begun.identity()


def test_a_recipe_that_is_there_but_not_here_is_named_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"did you mean {CONFIGS}/demo.toml"):
        load("configs/demo.toml")
