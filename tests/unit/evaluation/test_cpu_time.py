"""Who uses up its processor time before its wall has used up its time; who is killed for memory has not."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import pytest
from right_answer import TASK, candidate
from shared_judges import Judges, has_namespaces
from test_hostile import descendants

from core.evaluation import diagnosis, spawn
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.judge import Judge
from core.evaluation.verdict import Verdict
from core.evaluation.walls import cpu_time, held_up, sandbox

LOOP = "while True: pass"
LEVELS = ["judge", "basic"] if has_namespaces() else ["basic"]
WALL_S, GRACE_S = 1.0, 1
DEAF = f"__import__('signal').signal(24, __import__('signal').SIG_IGN)\n        {LOOP}"
"""24: SIGXCPU."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall that is put off for as long as it takes."""
    monkeypatch.setattr(spawn, "most_s", lambda wall_s: 100.0)
    monkeypatch.setattr(held_up.HeldUp, "seconds", lambda self: 100.0)


@pytest.fixture
def short(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> list[Judge]:
    """A judge of each level, with a short wall."""
    found = [judges[name] for name in LEVELS]
    for one in found:
        monkeypatch.setattr(one, "settings", msgspec.structs.replace(one.settings, wall_s=WALL_S))
    return found


@pytest.mark.parametrize(
    "places", [{"before": DEAF}, {"body": "while n > 0: offsets += 1"}], ids=["in_the_host", "in_the_executor"]
)
def test_a_candidate_that_uses_up_its_processor_time_is_told_so(
    patient: None, short: list[Judge], places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "Limits", partial(sandbox.Limits, grace_s=GRACE_S))
    with ThreadPoolExecutor() as pool:
        verdicts: list[Verdict] = list(pool.map(lambda one: one.judge(TASK, candidate(**places), "key"), short))
    assert [verdict.category for verdict in verdicts] == ["timeout"] * len(LEVELS), verdicts[0].feedback
    assert all(verdict.wall_s > cpu_time.limit_s(WALL_S, GRACE_S) - 1.0 for verdict in verdicts)


@pytest.mark.parametrize("which", ["host", "executor"])
def test_a_candidate_that_the_kernel_kills_for_memory_is_told_that(
    patient: None, short: list[Judge], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = short[0]
    idle = descendants(one._zygote.pid)

    def kill(header: dict[str, Any], _: bytes, **__: object) -> bool:
        """The host is the younger of the two."""
        if "phase" in header:
            executor, host = sorted(descendants(one._zygote.pid) - idle)
            os.kill(host if which == "host" else executor, signal.SIGKILL)
        return False

    monkeypatch.setattr(diagnosis, "settles", kill)
    verdict = one.judge(TASK, candidate(top="import time\ntime.sleep(60)"), "key")
    assert verdict.category == "memory", verdict.feedback


def test_a_gpus_child_that_uses_up_its_processor_time_is_told_so() -> None:
    zygote = GpuZygote(sandbox.probe(), slot=98)
    zygote.start()
    try:
        limits = sandbox.Limits(
            memory_mb=8192, wall_s=WALL_S, grace_s=GRACE_S, tmp_mb=64, threads=64, allow_processes=True
        )
        zygote.begin(limits)
        zygote.deadline += 100.0
        zygote.settle()
        zygote.ask("start", "cpu")
        with pytest.raises(ChildFailed) as failure:
            zygote.ask("import", LOOP)
        assert failure.value.timed_out and failure.value.code == -signal.SIGKILL
    finally:
        zygote.stop()


@pytest.mark.parametrize(
    ("code", "end", "expected"),
    [
        (LOOP, None, True),
        (f"import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n{LOOP}", None, True),
        (f"import threading\ndef spin():\n    {LOOP}\nthreading.Thread(target=spin).start()\n{LOOP}", None, True),
        ("import time; time.sleep(60)", signal.SIGKILL, False),
        ("import os; os._exit(9)", None, False),
        ("import time\nwhile time.process_time() < 0.9: pass\ntime.sleep(60)", signal.SIGTERM, False),
    ],
)
def test_the_limit_is_told_from_other_endings(code: str, end: int | None, expected: bool) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n{code}"
    with subprocess.Popen([sys.executable, "-c", limited]) as child:
        if end is not None:
            child.send_signal(end)
        assert cpu_time.ran_out(child.pid, 1) is expected
