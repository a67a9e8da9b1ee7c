import subprocess
import sys

import pytest
import torch

from core.tasks.compose import compose
from core.tasks.format import TaskError, build, init_inputs, parse, profiles_of, with_profile

SOURCE = """\
import torch
import torch.nn as nn

ROWS = 4096; WIDTH: int = (
    2 * 512  # comment
)
NAME = "größe"; HALF = WIDTH // 2
PROFILES = {"cpu": {"ROWS": 3, "WIDTH": 10}}


class Model(nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.linear = nn.Linear(width, HALF, bias=bias)

    def forward(self, x, flag):
        return self.linear(x)


def get_inputs():
    return [torch.randn(ROWS, WIDTH), True]


def get_init_inputs():
    return [[WIDTH], {"bias": False}]
"""


def test_a_profile_replaces_sizes_and_what_is_computed_from_them_follows():
    problem = build(SOURCE, profile="cpu")
    assert problem.namespace["HALF"] == 5
    assert problem.inputs(0)[0].shape == (3, 10)
    assert problem.model(0).linear.weight.shape == (5, 10)
    assert problem.model(0).linear.bias is None


def test_a_profile_that_is_absent_leaves_the_source_alone():
    assert with_profile(SOURCE, "full", "task") == SOURCE
    text = with_profile(SOURCE, "cpu", "task")
    assert text.splitlines()[3] == "ROWS = 3; WIDTH: int = ("
    assert "# comment" in text
    assert 'NAME = "größe"' in text


def test_seeds_decide_inputs_and_parameters_and_leave_the_global_state_alone():
    problem = build(SOURCE, profile="cpu")
    before = torch.random.get_rng_state()
    assert torch.equal(problem.inputs(1)[0], problem.inputs(1)[0])
    assert not torch.equal(problem.inputs(1)[0], problem.inputs(2)[0])
    assert torch.equal(problem.model(5).linear.weight, problem.model(5).linear.weight)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_profile_of_a_composition_has_its_size():
    source = compose(0, 1)[0].source
    assert [build(source, profile=profile).namespace["N"] for profile in ("cpu", "small")] == [1000, 250_000]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        ([3, 4], ((3, 4), {})),
        ([], ((), {})),
        ([[3], {"k": 4}], ((3,), {"k": 4})),
        ([[], {}], ((), {})),
        ({"k": 4}, ((), {"k": 4})),
        ([[3, 4], [5]], (([3, 4], [5]), {})),
    ],
)
def test_both_layouts_of_init_inputs(made, wanted):
    assert init_inputs(made, "task") == wanted


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", r"^t\.py: the source is not Python: .*line 1"),
        ("x = 1\n", r"^t\.py: the source lacks a class Model and a function get_inputs\(\) and .*it defines nothing$"),
        (
            SOURCE.replace("class Model", "class Net"),
            r"^t\.py: the source lacks a class Model; it defines Net, get_inputs",
        ),
        (SOURCE.replace("def get_inputs", "def inputs"), r"lacks a function get_inputs\(\); it defines Model, inputs"),
    ],
)
def test_sources_that_lack_something_say_what(source, message):
    with pytest.raises(TaskError, match=message):
        parse(source, "t.py")


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ('{"tiny": {"ROWS": 1}}', "unknown profile 'tiny'; known are cpu, small, full"),
        ('{"cpu": {"COLUMNS": 1}}', "profile 'cpu' sets 'COLUMNS', which the source does not assign"),
        ('{"cpu": 3}', "PROFILES must be a dict of dicts"),
        ("make()", "PROFILES must be a literal"),
    ],
)
def test_bad_profiles_are_refused(profiles, message):
    source = SOURCE.replace('{"cpu": {"ROWS": 3, "WIDTH": 10}}', profiles)
    with pytest.raises(TaskError, match=message):
        profiles_of(parse(source, "t.py"), "t.py")


def test_unknown_profile_names_and_wrong_returns_are_refused():
    with pytest.raises(TaskError, match="profile must be one of cpu, small, full, got 'tiny'"):
        build(SOURCE, profile="tiny")
    with pytest.raises(TaskError, match=r"t: get_inputs\(\) must return a list, got NoneType"):
        build(SOURCE.replace("return [torch.randn(ROWS, WIDTH), True]", "pass"), name="t", profile="cpu").inputs(0)
    with pytest.raises(TaskError, match=r"t: get_init_inputs\(\) must return a list, got int"):
        build(SOURCE.replace('return [[WIDTH], {"bias": False}]', "return 3"), name="t", profile="cpu")


def test_reading_tasks_imports_no_torch():
    code = (
        "import sys, runners.tasks, core.tasks.pairs; from core.tasks.sources import load_source; "
        "load_source(kind='starter'); load_source(kind='composed', count=3); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("source", ["def f(:\n", "x = 1\nclass (\n", "\0", "a = '", "  x = 1\n y = 2\n"])
def test_a_source_that_is_no_python_is_told_by_its_line_alone(source):
    with pytest.raises(TaskError) as caught:
        parse(source, "t.py")
    assert str(caught.value).startswith("t.py: the source is not Python: ") and "<" not in str(caught.value)
