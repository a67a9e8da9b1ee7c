import ast
from collections import Counter
from itertools import pairwise

import pytest
import torch

from core.tasks.compose import compose
from core.tasks.format import build, parse, profiles_of
from core.tasks.sources import load_source
from core.tasks.split import side_of
from core.tasks.starter import starter_kernel
from core.tasks.task import PROFILES

H100_SHARED_MEMORY = 232_448
SEEDS = (0, 100)


def test_every_kernel_agrees_with_its_model_in_the_interpreter(tmp_path, run_kernels):
    tasks = [task for task in load_source(kind="starter") for _ in SEEDS]
    cases = [
        {"source": task.source, "kernel": starter_kernel(task.name), "seed": SEEDS[number % len(SEEDS)]}
        for number, task in enumerate(tasks)
    ]
    found = zip(tasks, run_kernels(cases, tmp_path), strict=True)
    assert [(task.name, answer) for task, (answer, _) in found if answer != "right"] == []


def test_a_sample_of_kernels_cross_compiles_for_an_h100(tmp_path, cross_compile):
    tasks = load_source(kind="starter", count=6, seed=3)
    cases = [{"source": task.source, "kernel": starter_kernel(task.name)} for task in tasks]
    made = compose(seed=8, count=1)[0]
    cases += [{"source": made.source, "kernel": made.kernel(style)} for style in ("fused", "staged")]
    launches = cross_compile(cases, tmp_path)
    assert all(launches)
    assert all(shared <= H100_SHARED_MEMORY for case in launches for _, shared in case)


def test_set_is_large_and_spans_three_levels():
    levels = Counter(task.level for task in load_source(kind="starter"))
    assert sorted(levels) == [1, 2, 3]
    assert sum(levels.values()) >= 60
    assert min(levels.values()) >= 20


def test_both_sides_of_the_split_have_every_level():
    sides = {(side_of(task.structure), task.level) for task in load_source(kind="starter")}
    assert len(sides) == 6


def test_structures_are_varied():
    assert len({task.structure for task in load_source(kind="starter")}) >= 70


@pytest.mark.parametrize("task", load_source(kind="starter"), ids=lambda task: task.name)
def test_profiles_are_complete_and_grow(task):
    profiles = profiles_of(parse(task.source, task.name), task.name)
    assert tuple(profiles) == PROFILES
    sizes = [[profiles[profile][name] for name in sorted(profiles["cpu"])] for profile in PROFILES]
    assert all(low <= high for small, large in pairwise(sizes) for low, high in zip(small, large, strict=True))
    # The file's own sizes are the full ones.
    tree = ast.parse(task.source)
    own = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    assert {name: ast.literal_eval(own[name]) for name in profiles["full"]} == profiles["full"]


@pytest.mark.parametrize("task", load_source(kind="starter"), ids=lambda task: task.name)
def test_zeros_a_constant_or_an_old_output_are_no_answer(task):
    problem = build(task.source, name=task.name, profile="cpu")
    model = problem.model(0)
    with torch.no_grad():
        first, second = (tensors(model(*problem.inputs(seed))) for seed in (1, 2))
    for out, other in zip(first, second, strict=True):
        scale = out.abs().mean()
        wrong = [torch.zeros_like(out), other, *([torch.full_like(out, float(out.mean()))] if out.dim() else [])]
        for answer in wrong:
            far = (answer - out).abs() > 0.01 * (out.abs() + scale)
            assert far.double().mean() > 0.2


def tensors(made):
    """The outputs of a model, as float64."""
    return [value.double() for value in (made if isinstance(made, tuple | list) else (made,))]
