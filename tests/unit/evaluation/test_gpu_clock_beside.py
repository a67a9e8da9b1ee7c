"""The clock on a real GPU whose host is busy, and beside another candidate's first kernel: the same times as alone."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from core.evaluation.gpu import probe as gpu_probe
from core.evaluation.gpu.clock import GpuSettings
from core.evaluation.gpu.health import GpuHealth
from core.evaluation.gpu.lease import lease
from core.evaluation.gpu.stage import GpuStage
from core.evaluation.walls import sandbox
from core.tasks.task import Task

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
TASK = Task(
    task_id="test/beside", name="beside", level=1, origin="test",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1
def get_inputs():
    return [torch.randn(32768, 1024)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
CANDIDATE = """
import torch
import triton
import triton.language as tl
@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, tl.maximum(x, 0.0) * 2 + 1, mask=offs < n)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out
"""
TRIES = 6
BURNS = "print('begun', flush=True)\nwhile True: pass"
"""One for each core and one more: all wait for a core at times."""
FIRST_CALLS = """
import time, torch
from core.evaluation.gpu.lease import first_call
torch.cuda._sleep(1)
print("begun", flush=True)
while True:
    with first_call("cuda:0"):
        torch.cuda._sleep(1_500_000_000)
        torch.cuda.synchronize()
    time.sleep(0.7)
"""
"""Kernels of about a second, which begin and end while others measure."""


@pytest.fixture
def times(tmp_path):
    """Measures the candidate once, in milliseconds and by which clock."""
    settings = GpuSettings(own_work=False, baseline_folder=str(tmp_path / "baselines"))
    stage = GpuStage(settings, sandbox.probe(), slot=86)
    health = GpuHealth(
        "cuda:0", probe=lambda: gpu_probe.warm(stage.candidates, "cuda:0"), prober=stage.candidates,
        keep=[stage.baselines, stage.candidates], guard=lambda: lease("cuda:0"), folder=tmp_path,
    )  # fmt: skip
    stage.start()

    def once() -> tuple[float, str]:
        verdict = health.run(lambda: stage.judge(TASK, CANDIDATE, "k"))
        assert verdict.kind == "pass", verdict.feedback
        return stage.measured.runtime_ms, stage.measured.clock

    try:
        stage.wait_ready()
        health.quiet.calibrate()
        stage.watch_quiet(health.quiet)
        yield once
    finally:
        stage.stop()


@contextlib.contextmanager
def running(source: str, count: int) -> Iterator[None]:
    processes = [
        subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("source, count", [(BURNS, (os.cpu_count() or 1) + 1), (FIRST_CALLS, 1)])
def test_a_candidate_takes_as_long_as_alone(times, source, count):
    alone_ms, _ = times()
    with running(source, count):
        found = [times() for _ in range(TRIES)]
    assert [clock for _, clock in found] == ["events"] * TRIES, found
    assert [ms for ms, _ in found] == [pytest.approx(alone_ms, rel=0.05)] * TRIES
