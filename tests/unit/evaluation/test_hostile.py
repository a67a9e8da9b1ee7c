"""Whatever a candidate does to its process, at either level there is a verdict with the right category, the judge goes
on, and nothing is left behind."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile
import msgspec
import pytest

from core.evaluation import sandbox
from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

Variant = Callable[..., str]
SETTINGS = JudgeSettings(memory_mb=1024)
SHORT_S = 1.0
IN_BASIC = ("endless_import", "endless_kernel", "ignores_sigterm", "bottomless_recursion")
"""Time is watched from outside, in the same way at every level."""
CASES = {**hostile.ENDINGS, **hostile.MEMORY, **hostile.FILES, **hostile.OUTPUTS}


@pytest.fixture(scope="module", params=["namespaces", "basic"])
def walled(request: pytest.FixtureRequest) -> Iterator[Judge]:
    """A judge at each level that this machine allows."""
    if request.param == "namespaces" and sandbox.probe().level != "namespaces":
        pytest.skip("this machine refuses namespaces")
    one = Judge(msgspec.structs.replace(SETTINGS, isolation=request.param), slot=91)
    one.start()
    one.wait_ready()
    assert one.walls.level == request.param
    yield one
    one.stop()


def descendants() -> set[int]:
    """Living processes that come from this one."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def traces() -> tuple[set[int], set[str], set[str], str]:
    """Processes, folders of this process's judges with what is in them, shared memory, mounts."""
    folders = Path(tempfile.gettempdir()).glob(f"kernelmill-judge-{os.getpid()}-*")
    files = {str(path) for folder in folders for path in [folder, *folder.iterdir()]}
    return descendants(), files, set(os.listdir("/dev/shm")), Path("/proc/self/mounts").read_text()


def _ask(judge: Judge, task: Task, source: str, wall_s: float) -> Verdict:
    judge.settings = msgspec.structs.replace(judge.settings, wall_s=wall_s)
    return judge.judge(task, source, "key")


def _check(judge: Judge, task: Task, source: str, categories: str, wall_s: float, honest: str) -> None:
    processes, files, shared, mounts = traces()
    verdict = _ask(judge, task, source, wall_s)
    assert (verdict.category or verdict.kind) in categories.split(", "), verdict.feedback
    assert len(verdict.feedback) < 2000
    assert traces()[0] <= processes
    assert _ask(judge, task, honest, SETTINGS.wall_s).kind == "pass"
    after = traces()
    assert after[0] <= processes and after[1] <= files and after[2] <= shared and after[3] == mounts


@pytest.mark.parametrize("name", hostile.TIME)
def test_time_runs_out(walled: Judge, task: Task, variant: Variant, name: str) -> None:
    if walled.walls.level == "basic" and name not in IN_BASIC:
        pytest.skip("the same at the other level")
    places, categories = hostile.TIME[name]
    _check(walled, task, variant(**places), categories, SHORT_S, variant())


@pytest.mark.parametrize("name", CASES)
def test_bad_behaviour_has_a_verdict(walled: Judge, task: Task, variant: Variant, name: str) -> None:
    places, categories = CASES[name]
    _check(walled, task, variant(**places), categories, SETTINGS.wall_s, variant())


@pytest.mark.parametrize("place", ["top", "before"])
def test_a_gigabyte_of_output_is_cut_off(walled: Judge, task: Task, variant: Variant, place: str) -> None:
    source = variant(**{place: "[print('x' * 2**20) for _ in range(1024)]"})
    _check(walled, task, source, "output_limit", SETTINGS.wall_s, variant())


def test_some_output_does_no_harm(walled: Judge, task: Task, variant: Variant) -> None:
    assert _ask(walled, task, variant(before="print('x' * 2**20)"), SETTINGS.wall_s).kind == "pass"
