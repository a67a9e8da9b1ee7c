"""`kernelmill judge` says what it waits for, and for how long at most, while it waits."""

import pytest

from core.evaluation import judge as judging
from runners import judge as command
from runners.cli import main

TASK = """
import time
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        {forward}
        return torch.relu(x * 2.0)
def get_inputs():
    {inputs}
    return [torch.randn(1000)]
def get_init_inputs():
    return []
{top}
"""
CANDIDATE = """
import time
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, tl.maximum(x * 2.0, 0.0), mask=offsets < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        {forward}
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
"""
STUCK = ["while True: pass", "time.sleep(3600)"]


@pytest.fixture
def judged(tmp_path, capsys):
    """Exit code, stdout and stderr for a task and a candidate with something put in at one place."""

    def run(candidate="pass", **places):
        task = TASK.format(**{"top": "", "inputs": "pass", "forward": "pass", **places})
        (tmp_path / "task.py").write_text(task)
        (tmp_path / "candidate.py").write_text(CANDIDATE.format(forward=candidate))
        files = ["--task", str(tmp_path / "task.py"), "--candidate", str(tmp_path / "candidate.py")]
        code = main(["judge", *files, "--wall", "3"])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("stuck", STUCK)
@pytest.mark.parametrize("where", ["top", "inputs", "forward"])
def test_a_task_that_hangs_is_what_is_waited_for(judged, monkeypatch, where, stuck):
    monkeypatch.setattr(judging, "REFERENCE_S", 2.0)
    monkeypatch.setattr(command, "TOLD_AFTER_S", 0.4)
    code, out, err = judged(**{where: stuck})
    assert code == 2 and out.startswith("NO VERDICT")
    told = [line for line in err.splitlines() if "the task's own code" in line]
    assert told == ["kernelmill judge: waiting for the task's own code (its inputs and Model): at most 2 s"]


def test_a_candidate_that_hangs_is_what_is_waited_for(judged, monkeypatch):
    monkeypatch.setattr(command, "TOLD_AFTER_S", 0.4)
    code, out, err = judged(candidate="while True: pass")
    assert code == 1 and out.startswith("FAIL")
    told = [line for line in err.splitlines() if "waiting for the candidate" in line]
    assert len(told) == 1 and "at most 516 s, all tries (--wall is 3 s)" in told[0]


def test_what_is_soon_there_is_not_waited_for(judged, monkeypatch):
    monkeypatch.setattr(command, "TOLD_AFTER_S", 30.0)  # soon on a machine that does much else
    assert judged()[::2] == (0, "")
