"""Whatever a candidate does to its process, at every level of walls there is a verdict with the right category, the
judge goes on, and nothing is left behind.

Each level has a thread that plays its cases one after another; a test waits for its own case.
"""

import contextlib
import os
import select
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import hostile
import msgspec
import pytest
from right_answer import TASK, candidate
from shared_judges import LEVELS, Judges, has_namespaces

from core.evaluation.judge import Judge
from core.evaluation.verdict import Verdict

WALL_S, SHORT_S = 20.0, 1.0
IN_BASIC = ("endless_import", "endless_kernel", "ignores_sigterm", "bottomless_recursion")
"""Time is watched from outside, in the same way at every level."""
IN_A_USER_NAMESPACE = ("exit_0", "kills_everybody", "fork_bomb", "thread_bomb", "huge_bytes", "memory_file",
                       "full_disk", "many_files", "write_outside", "network", "ptrace", "endless_kernel")  # fmt: skip
OTHERS = {**hostile.ENDINGS, **hostile.MEMORY, **hostile.FILES, **hostile.OUTPUTS, **hostile.PRINTS}
CASES = {**hostile.TIME, **OTHERS}
CHOSEN = [("namespaces", name) for name in CASES]
CHOSEN += [("basic", name) for name in (*IN_BASIC, *OTHERS)]
CHOSEN += [("user_namespace", name) for name in IN_A_USER_NAMESPACE]
Key = tuple[str, str]


def descendants(of: int) -> set[int]:
    """Living processes that come from one, and that one."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(name)] = int(parent)
    found = {of}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def folders(names: str) -> set[str]:
    """Folders of judges below the temporary one, with what is in them."""
    found = Path(tempfile.gettempdir()).glob(names)
    return {str(path) for folder in found for path in [folder, *folder.iterdir()]}


def shared() -> tuple[set[str], str]:
    """Shared memory and mounts. Not the semaphores of multiprocessing: other tests of this machine have some."""
    names = {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}
    return names, Path("/proc/self/mounts").read_text()


def added(before: tuple[set[str], str], within_s: float = 10.0) -> tuple[set[str], bool]:
    """Shared memory that stays although it was not there before and nobody uses it, and whether mounts differ. Other
    processes of this machine come and go as well: what is theirs they hold, or it is gone after a while."""
    end = time.monotonic() + within_s
    while True:
        now = shared()
        stays = now[0] - before[0]
        stays -= in_use() if stays else set()
        if not (stays or now[1] != before[1]) or time.monotonic() >= end:
            return stays, now[1] != before[1]
        select.select([], [], [], 0.1)


def in_use() -> set[str]:
    """Names of shared memory that a living process has mapped."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= {line.rpartition("/dev/shm/")[2] for line in path.read_text().splitlines() if "/dev/shm/" in line}
    return found


def _processes(judge: Judge) -> set[int]:
    process = judge._zygote._process
    assert process is not None
    return descendants(process.pid)


def _files(judge: Judge) -> set[str]:
    outer = judge._zygote._outer
    return folders(os.path.basename(outer)) if outer else set()


def _ask(judge: Judge, source: str, wall_s: float) -> Verdict:
    usual = judge.settings
    judge.settings = msgspec.structs.replace(usual, wall_s=wall_s)
    try:
        return judge.judge(TASK, source, "key")
    finally:
        judge.settings = usual


def play(judge: Judge, level: str, name: str) -> None:
    """One case, then an honest candidate; raises AssertionError."""
    assert judge.walls.level == ("basic" if level == "basic" else "namespaces")
    places, categories = CASES[name]
    before = _processes(judge), _files(judge), shared()
    verdict = _ask(judge, candidate(**places), SHORT_S if name in hostile.TIME else WALL_S)
    assert (verdict.category or verdict.kind) in hostile.at(categories, level), verdict.feedback
    assert len(verdict.feedback) < 2000
    assert _processes(judge) <= before[0]
    assert _ask(judge, candidate(), WALL_S).kind == "pass"
    assert _processes(judge) <= before[0] and _files(judge) <= before[1]
    assert added(before[2]) == (set(), False)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, judges: Judges) -> Iterator[dict[Key, Future[None]]]:
    """The chosen cases, being played."""
    pools: dict[str, ThreadPoolExecutor] = {}
    found: dict[Key, Future[None]] = {}
    chosen = [item.callspec.params for item in request.session.items if "outcomes" in item.fixturenames]
    judges.begin(*{LEVELS[params["level"]] for params in chosen})
    for level, name in ((params["level"], params["name"]) for params in chosen):
        pool = pools.setdefault(level, ThreadPoolExecutor(1))
        found[level, name] = pool.submit(play, judges[LEVELS[level]], level, name)
    yield found
    for pool in pools.values():
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("level", "name"), CHOSEN, ids=["-".join(chosen) for chosen in CHOSEN])
def test_bad_behaviour_has_a_verdict(outcomes: dict[Key, Future[None]], level: str, name: str) -> None:
    if level != "basic" and not has_namespaces():
        pytest.skip("this machine refuses namespaces")
    outcomes[level, name].result()
