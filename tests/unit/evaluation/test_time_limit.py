"""A task's own code that never ends, or ends the process, is a task that does not run: in words, and in good time."""

import itertools
import signal
import threading

import pytest

from core.evaluation import judge as judging
from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.evaluation.time_limit import TookTooLong, time_limit
from core.tasks.task import Task

GOOD = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        {forward}
        return torch.relu(x)
def get_inputs():
    {inputs}
    return [torch.randn(16)]
def get_init_inputs():
    return []
{top}
"""
STUCK = {
    "while it loads": {"top": "while True: pass"},
    "asleep": {"top": "import time; time.sleep(3600)"},
    "in its inputs": {"inputs": "while True: pass"},
    "in forward": {"forward": "while True: pass"},
    "and catches everything": {"top": "while True:\n    try:\n        while True: pass\n    except Exception: pass"},
}


def asked(source: str):
    task = Task(task_id="file/odd", name="odd", level=1, origin="file", source=source)
    candidate = "import triton\n@triton.jit\ndef k(x):\n    pass\nclass ModelNew:\n    pass\n"
    return Judge(JudgeSettings()).judge(task, candidate, "key")


@pytest.mark.parametrize("how", STUCK)
def test_a_reference_that_never_ends_is_a_task_that_does_not_run(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "REFERENCE_S", 0.5)
    verdict = asked(GOOD.format(**{"top": "", "inputs": "pass", "forward": "pass", **STUCK[how]}))
    assert (verdict.kind, verdict.category) == ("infra", "task_error")
    assert "file/odd does not run: it was not ready after" in verdict.feedback


@pytest.mark.parametrize("where", ["top", "inputs", "forward"])
def test_a_reference_that_leaves_is_a_task_that_does_not_run(where: str) -> None:
    verdict = asked(GOOD.format(**{"top": "", "inputs": "pass", "forward": "pass", where: "raise SystemExit(3)"}))
    assert (verdict.kind, verdict.category) == ("infra", "task_error")
    assert "file/odd does not run: SystemExit: 3" in verdict.feedback


def test_the_limit_ends_with_its_block_and_is_the_main_threads_alone() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TookTooLong), time_limit(0.05):
        for _ in itertools.count():
            pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before
    ended = []

    def work() -> None:
        with time_limit(1e-3):
            ended.append(sum(range(200_000)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [sum(range(200_000))]
