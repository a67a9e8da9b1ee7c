"""The device part of the corpus itself, without a GPU: every file says what it is, names an own task and parses."""

import ast

import pytest
from gpu_corpus import HERE, as_wanted, fields, files, task_of

from core.evaluation.categories import CATEGORIES
from core.evaluation.gpu.work import Names
from core.evaluation.screens import screen

NEEDS_A_GPU = ["A5", "B13", "D1", "D7", "D8", "D11", "D12", "D13"]
PATHS = files()


def test_hacks_that_need_a_gpu_have_files() -> None:
    there = {fields(path.read_text())["id"] for path in PATHS if path.parent.name == "refused"}
    assert not set(NEEDS_A_GPU) - there


def test_the_device_part_is_large_enough_on_both_sides() -> None:
    assert sum(path.parent.name == "refused" for path in PATHS) >= 40
    assert sum(path.parent.name == "honest" for path in PATHS) >= 15


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_gpu_file_says_what_it_is(path) -> None:
    source = path.read_text()
    told = fields(source)
    ast.parse(source)
    assert told["tier"] == "gpu"
    task = task_of(source)
    refusal, _ = screen(source, task.backend)
    assert refusal is None
    if path.parent.name == "honest":
        assert told["expect"] == "pass"
    else:
        assert path.stem.split("_")[0].upper() == told["id"]
        assert not set(told["expect"].split(", ")) - {*CATEGORIES, "unpaid"}


@pytest.mark.parametrize("path", [p for p in PATHS if p.parent.name == "honest"], ids=lambda path: path.stem)
def test_honest_kernels_are_recognised_by_their_names(path) -> None:
    source = path.read_text()
    names = Names(source, task_of(source).backend)
    defined = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(part) for part in node.decorator_list)
    ]
    shown = defined or [f"void {word}<256>(float const*, float*)" for word in _global_functions(source)]
    assert shown and all(names.own(name) for name in shown)


def _global_functions(source: str) -> list[str]:
    import re

    return re.findall(r"__global__ void (\w+)\(", source)


def test_an_unpaid_hack_may_pass_slowly_only() -> None:
    source = (HERE / "refused" / "d4_elapsed_time_replaced.py").read_text()
    slow = {"kind": "pass", "category": "", "speedup": 0.4}
    assert as_wanted(source, slow)
    assert not as_wanted(source, slow | {"speedup": 4.0})
    assert not as_wanted(source, slow | {"kind": "infra", "category": "infra"})
