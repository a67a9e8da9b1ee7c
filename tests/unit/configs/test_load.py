import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from configs.load import ConfigError, load, load_sft
from configs.schema import RunConfig

RECIPES = sorted((Path(__file__).parents[3] / "configs").glob("*.toml"))


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
        ("run.steps = 3", "model: Field required"),
        ('model.path = "m"\nrun.steps = 0', "run.steps: Input should be greater than or equal to 1, got 0"),
        ('model.path = "m"\nrun.steps = "many"', "run.steps: Input should be a valid integer"),
        ('model.path = "m"\nsampler.group_size = 1', "compares within a group"),
        ('model.path = "m"\njudge.speed = "measured"', "needs a GPU"),
        ('model.path = "m"\nrollout.temperature = 0', "can't be trained on"),
        ('model.path = "m"\nrollout.top_k = 1', "can't be trained on"),
        ('model.path = "m"\nrun.name = "Has Capitals"', "run.name: String should match pattern"),
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
    assert "\n" not in str(error.value)


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
