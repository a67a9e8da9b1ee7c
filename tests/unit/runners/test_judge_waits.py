"""`kernelmill judge` says what it waits for, and for how long at most, while it waits."""

import os
import re

import pytest

from core.evaluation import judge as judging
from core.evaluation import tiers, waits
from core.evaluation.settings import JudgeSettings
from core.evaluation.walls import held_up
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


class Kept:
    """A judge that outlives the command."""

    def __init__(self, judge):
        self._judge = judge

    def __getattr__(self, name):
        return getattr(self._judge, name)

    def start(self):
        pass

    def stop(self):
        pass


@pytest.fixture(scope="module")
def one_judge():
    """`open_judge` that opens one for all: it is started in seconds, and a task that hangs leaves it as it was."""
    opened, open_judge = [], tiers.open_judge

    def once(settings):
        if not opened:
            opened.append((settings, open_judge(settings)))
            opened[0][1].start()
        assert settings == opened[0][0]
        return Kept(opened[0][1])

    yield once
    for _, judge in opened:
        judge.stop()


@pytest.mark.parametrize("stuck", STUCK)
@pytest.mark.parametrize("where", ["top", "inputs", "forward"])
def test_a_task_that_hangs_is_what_is_waited_for(judged, one_judge, monkeypatch, where, stuck):
    if where != "forward":  # there the command's own is started, and stopped after the hang
        monkeypatch.setattr(tiers, "open_judge", one_judge)
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
    assert len(told) == 1 and "at most 516 s (3 tries of 4 x (--wall 3 s + 20 s for compilers), " in told[0]
    assert told[0].endswith("and 4 starts of 60 s)")


@pytest.mark.parametrize(
    "changes",
    [{}, {"wall_s": 7.5, "retries": 0}, {"device_class": "gpu", "speed": "measured", "baselines": ("compile",)}],
)
def test_the_parts_that_are_told_make_the_whole(changes):
    settings = JudgeSettings(**changes)
    numbers = [float(number) for number in re.findall(r"[\d.]+", waits.in_words(settings, "--wall"))]
    tries, times, wall_s, compile_s, starts, start_s, *gpu_s = numbers
    assert tries * times * (wall_s + compile_s) + starts * start_s + sum(gpu_s) == waits.longest_s(settings)


def test_the_help_says_what_the_wall_counts(capsys):
    with pytest.raises(SystemExit):
        main(["judge", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "wall-clock seconds for a candidate's processes, in each try" in told
    assert held_up.MOST == 3 and "on a busy machine comes on top, up to three times as much" in told


CUDA = """
import torch
from torch.utils.cpp_extension import load_inline
module = load_inline("m", "torch::Tensor f(torch::Tensor x);", "__global__ void k() {}", functions=["f"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.f(x)
"""


def test_cuda_among_triton_is_told_the_option_that_judges_it(tmp_path, capsys):
    (tmp_path / "task.py").write_text(TASK.format(top="", inputs="pass", forward="pass"))
    nothing = "import torch\nclass ModelNew(torch.nn.Module): pass\n"
    for name, source, advised in (("cuda", CUDA, True), ("none", nothing, False)):
        (tmp_path / f"{name}.py").write_text(source)
        words = ["judge", "--task", str(tmp_path / "task.py"), "--candidate", str(tmp_path / f"{name}.py"), "--json"]
        assert main(words) == 1
        out, err = capsys.readouterr()
        assert '"no_kernel"' in out and ("CUDA C++, but no @triton.jit kernel" in out) is advised
        assert (err == f"kernelmill judge: {tmp_path}/cuda.py is CUDA C++: judge it with --backend cuda\n") is advised


TRITON = """
import torch
import triton
@triton.jit
def kernel(x):
    pass
class ModelNew(torch.nn.Module):
    def forward(self, x):
        kernel[(1,)](x)
        return x
"""


def test_triton_where_cuda_was_asked_for_has_no_kernel(tmp_path, capsys):
    (tmp_path / "task.py").write_text(TASK.format(top="", inputs="pass", forward="pass"))
    candidate = tmp_path / "triton.py"
    candidate.write_text(TRITON)
    words = ["judge", "--task", str(tmp_path / "task.py"), "--candidate", str(candidate), "--json"]
    assert main([*words, "--backend", "cuda"]) == 1
    out, err = capsys.readouterr()
    assert '"no_kernel"' in out and "Triton, but no CUDA kernel: neither load_inline nor load is called" in out
    assert err == f"kernelmill judge: {candidate} is Triton: judge it with --backend triton\n"


def test_what_is_soon_there_is_not_waited_for(judged, monkeypatch):
    monkeypatch.setattr(command, "TOLD_AFTER_S", 30.0)  # soon on a machine that does much else
    assert judged()[::2] == (0, "")


@pytest.mark.parametrize("place", ["top", "inputs", "forward"])
def test_a_task_that_ends_its_process_is_no_pass(judged, place):
    """The exit code is the verdict's, and 0 is a pass."""
    before = os._exit
    code, out, _ = judged(**{place: "__import__('os')._exit(0)"})
    assert code == 2 and "does not run: SystemExit: 0" in out and os._exit is before
