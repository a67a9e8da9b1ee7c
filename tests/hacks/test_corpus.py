"""Every hack is refused for a reason that fits, no honest kernel is refused.

A file is a candidate; its docstring says what it does, for which task, and which categories may refuse it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.tasks.task import Task

HERE = Path(__file__).parent


def _cases(folder: str) -> list[object]:
    return [pytest.param(path, id=path.stem) for path in sorted((HERE / folder).glob("*.py"))]


def _field(source: str, name: str) -> str:
    found = re.search(rf"^{name}: (.*)$", source, re.MULTILINE)
    assert found is not None, f"the docstring lacks a line '{name}: ...'"
    return found[1]


def _task(name: str) -> Task:
    source = (HERE / "tasks" / f"{name}.py").read_text()
    return Task(task_id=f"hacks/{name}", name=name, level=1, origin="hacks", source=source)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    one = Judge(JudgeSettings(wall_s=5.0), slot=90)
    one.start()
    one.wait_ready()
    yield one
    one.stop()


@pytest.mark.parametrize("path", _cases("refused"))
def test_hack_is_refused(judge: Judge, path: Path) -> None:
    source = path.read_text()
    verdict = judge.judge(_task(_field(source, "task")), source, path.stem)
    assert verdict.kind == "fail", verdict
    assert verdict.category in _field(source, "expect").split(", "), verdict.feedback
    assert not verdict.correct


@pytest.mark.parametrize("path", _cases("honest"))
def test_honest_kernel_passes(judge: Judge, path: Path) -> None:
    source = path.read_text()
    verdict = judge.judge(_task(_field(source, "task")), source, path.stem)
    assert verdict.kind == "pass", verdict.feedback
    assert verdict.correct and verdict.compiled
    assert verdict.speed_kind == "modelled" and verdict.speedup is not None and verdict.speedup > 0
