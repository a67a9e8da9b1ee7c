"""A candidate on a busy machine has its wall's time on a processor; one that sleeps or never ends gains nothing."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from right_answer import TASK, candidate
from shared_judges import Judges, has_namespaces

from core.evaluation import waits
from core.evaluation.settings import JudgeSettings
from core.evaluation.walls import held_up
from core.evaluation.walls.held_up import MOST, HeldUp, most_s

CPU = {min(os.sched_getaffinity(0))}
BURN = "end = time.process_time() + {:g}\nwhile time.process_time() < end: pass"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count what waits for a processor"
)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that never rest, all on one processor."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        for hog in hogs:
            os.sched_setaffinity(hog.pid, CPU)
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def _child(code: str) -> subprocess.Popen[bytes]:
    """Says a line when it is done, and lives on."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import sys, time\n{code}\nprint(flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    os.sched_setaffinity(child.pid, CPU)
    return child


def _waited(code: str) -> float:
    with _child(code) as child:
        held = HeldUp(child.pid)
        before = held.seconds()
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        found = held.seconds() - before
        child.kill()
        return found


def test_who_wants_a_processor_that_others_have_is_held_up():
    with busy(3):
        burnt, slept = _waited(BURN.format(0.5)), _waited("time.sleep(2)")
    assert burnt > 0.5 and slept < burnt


def test_it_never_becomes_less():
    """A process that has ended is in no list any more."""
    held, found = HeldUp(os.getpid()), []
    with busy(2):
        with _child(BURN.format(0.2)) as child:
            assert child.stdout is not None and child.stdout.readline() == b"\n"
            found.append(held.seconds())
            child.kill()
        found.append(held.seconds())
    found.append(held.seconds())
    assert found == sorted(found) and found[0] > 0


def test_a_thread_counts_for_itself():
    """Another job of this process, in another thread, is not what this one waits for."""
    held: list[HeldUp] = []
    thread = threading.Thread(target=lambda: held.append(HeldUp(os.getpid())))
    thread.start()
    thread.join()
    assert held[0]._us[1] != HeldUp(os.getpid())._us[1]


@pytest.mark.parametrize("level", ["judge", "basic"])
def test_what_a_zygote_waited_before_is_none_of_the_candidates_time(
    judges: Judges, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was started on a busy machine waited for seconds while it imported torch."""
    judge = judges[level]
    own = {str(pid) for pid in (judge._zygote.pid, *held_up.below(judge._zygote.pid))}
    real = held_up._waited

    def long_ago(places: tuple[str, ...]) -> dict[str, float]:
        return {place: waited_s + 1000.0 * (place in own) for place, waited_s in real(places).items()}

    monkeypatch.setattr(held_up, "_waited", long_ago)
    monkeypatch.setattr(judge, "settings", msgspec.structs.replace(judge.settings, wall_s=1.0))
    verdict = judge.judge(TASK, candidate(top="import time; time.sleep(1000)"), "key")
    assert verdict.category == "timeout" and verdict.wall_s < most_s(1.0), verdict.wall_s


@pytest.fixture
def crowded(judges: Judges) -> Iterator[Judges]:
    """The judge's next children run on one processor, with three that never rest."""
    zygote = judges["judge"]._zygote
    before = os.sched_getaffinity(zygote.pid)
    processes = [zygote.pid, *(child.pid for child in psutil.Process(zygote.pid).children(recursive=True))]
    for pid in processes:
        os.sched_setaffinity(pid, CPU)
    with busy(3):
        yield judges
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, before)


@pytest.mark.skipif(not has_namespaces(), reason="this machine refuses namespaces")
def test_a_slow_machine_is_no_verdict(crowded: Judges) -> None:
    judge = crowded["judge"]
    usual = judge.settings
    try:
        judge.settings = msgspec.structs.replace(usual, wall_s=2.0)
        slow = judge.judge(TASK, candidate(top="import time\n" + BURN.format(0.8)), "key")
        judge.settings = msgspec.structs.replace(usual, wall_s=1.0)
        endless = judge.judge(TASK, candidate(top="while True: pass"), "key")
    finally:
        judge.settings = usual
    assert slow.kind == "pass", (slow.feedback, slow.wall_s)
    assert endless.category == "timeout"


def test_who_waits_for_a_verdict_waits_for_a_slow_machine_too():
    quick, slow = (waits.longest_s(JudgeSettings(wall_s=wall_s)) for wall_s in (10.0, 30.0))
    retries = JudgeSettings().retries
    assert slow - quick == pytest.approx((retries + 1) * (most_s(30.0) - most_s(10.0)))
    assert most_s(10.0) == 10.0 * (1 + MOST)
