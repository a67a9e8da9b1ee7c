"""Every way a GPU child can fail has its category, its words, and leaves the judge as it was."""

import os
import signal

import pytest
import torch

from core.evaluation.findings import feedback_text
from core.evaluation.gpu import condition as gpu_condition
from core.evaluation.gpu import faults as gpu_faults
from core.evaluation.gpu import host_memory, timing
from core.evaluation.gpu import processes as gpu_processes
from core.evaluation.gpu.device_memory import DriverError
from core.evaluation.gpu.spawn import ChildFailed
from core.evaluation.gpu.stage import GpuSettings, GpuStage
from core.evaluation.gpu.task import GpuTask
from core.evaluation.walls import sandbox
from core.tasks.task import Task

NEEDS = "the task itself needs 12.9 GB (inputs 6.4, parameters 0.0, outputs 6.4)"
SOURCE = """import triton
@triton.jit
def kernel(x_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(x_ptr + offs, tl.nothing(offs))
"""
COMPILER = "at 3:27:\ndef kernel(x_ptr, N: tl.constexpr):\n    offs = tl.arange(0, N)\n    tl.store(x_ptr + offs, tl.nothing(offs))\n                           ^\nAttributeError(\"module 'triton.language' has no attribute 'nothing'\")"
OOM = (
    "CUDA out of memory. Tried to allocate 60.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 12.30 GiB is "
    "free. Including non-PyTorch memory, this process has 7.00 GiB memory in use."
)
ERRORS = [
    ("call", "AcceleratorError", "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might ...", ("launch", "out_of_bounds"), "memory that is not its own"),
    ("call", "RuntimeError", "Triton Error [CUDA]: an illegal memory access was encountered", ("launch", "out_of_bounds"), "memory that is not its own"),
    ("call", "RuntimeError", "Triton Error [CUDA]: misaligned address", ("launch", "kernel_error"), "misaligned"),
    ("call", "AcceleratorError", "CUDA error: device-side assert triggered", ("launch", "kernel_error"), "assertion"),
    ("call", "AcceleratorError", "CUDA error: unspecified launch failure", ("launch", "kernel_error"), "died"),
    ("call", "AcceleratorError", "CUDA error: an illegal instruction was encountered", ("launch", "kernel_error"), "illegal instruction"),
    ("call", "AcceleratorError", "CUDA error: too many resources requested for launch", ("compile", "registers"), "registers or threads"),
    ("call", "AcceleratorError", "CUDA error: invalid configuration argument", ("launch", "launch_error"), "impossible grid"),
    ("call", "RuntimeError", "Triton Error [CUDA]: invalid argument", ("launch", "launch_error"), "invalid argument"),
    ("call", "OutOfResources", "out of resource: shared memory, Required: 300000, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.", ("compile", "shared_memory"), "300,000 bytes of shared memory"),
    ("call", "OutOfResources", "out of resource: threads, Required: 2048, Hardware limit: 1024.", ("compile", "registers"), "2,048 of threads"),
    ("call", "OutOfMemoryError", OOM, ("launch", "memory"), "asked for 60.00 GiB more where 12.30 GiB were left"),
    ("call", "RuntimeError", "Triton Error [CUDA]: out of memory", ("launch", "memory"), NEEDS),
    ("call", "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", ("launch", "memory"), "did not suffice"),
    ("block", "OutOfMemoryError", OOM, ("timing", "memory"), "60.00 GiB"),
    ("call", "CompilationError", COMPILER, ("compile", "compile_error"), "(line 5)"),
    ("import", "RuntimeError", "Error building extension 'x': [1/2] nvcc\nmain.cu(12): error: identifier \"foo\" is undefined", ("compile", "compile_error"), 'identifier "foo" is undefined'),
    ("construct", "ValueError", "no such size", ("load", "construct_error"), "no such size"),
    ("state", "WeightsMismatch", "weight (3,) is missing", ("load", "weights_mismatch"), "weight (3,) is missing"),
    ("call", "NotPlainError", "a Parameter2, not a plain torch.Tensor", ("correctness", "wrong_type"), "Parameter2"),
    ("call", "ZeroDivisionError", "division by zero", ("launch", "runtime_error"), "division by zero"),
]  # fmt: skip


@pytest.mark.parametrize(("doing", "kind", "message", "place", "words"), ERRORS)
def test_what_was_raised_has_a_category(doing, kind, message, place, words):
    failure = ChildFailed(doing, error={"type": kind, "message": message, "line": 0, "code": ""})
    verdict = gpu_faults.finding_of(failure, 60.0, 1000, SOURCE, NEEDS)
    assert (verdict.stage, verdict.category) == place
    assert words in feedback_text(verdict).replace("\n… ", " ").replace(" …", "")


@pytest.mark.parametrize(
    ("failure", "category", "words"),
    [
        (ChildFailed("call", timed_out=True), "timeout", "60 s"),
        (ChildFailed("block", timed_out=True), "timeout", "to be timed"),
        (ChildFailed("call", code=-9), "crash", "SIGKILL"),
        (ChildFailed("call", code=-11), "crash", "SIGSEGV"),
        (ChildFailed("call", code=-99), "crash", "signal 99"),
        (ChildFailed("call", code=3), "crash", "exit 3"),
        (ChildFailed("call", error={"type": 3}), "tampering", "none of ours"),
        (ChildFailed("call", error={"type": "Garbled", "message": "its answer is none of ours"}), "tampering", "judge"),
    ],
)
def test_how_it_ended_has_a_category(failure, category, words):
    finding = gpu_faults.finding_of(failure, 60.0, 1000)
    assert finding.category == category
    assert words in finding.headline


def test_a_lost_context_of_our_own_is_told_from_memory():
    assert gpu_faults.broken(RuntimeError("CUDA error: device-side assert triggered"))
    for call in ("cuCtxSynchronize", "cuMemUnmap", "cuMemCreate"):  # the first call after it tells, whichever it is
        assert gpu_faults.broken(DriverError(f"{call}: CUDA_ERROR_ILLEGAL_ADDRESS (700)"))
        assert not gpu_faults.broken(DriverError(f"{call}: CUDA_ERROR_OUT_OF_MEMORY (2)"))
    assert not gpu_faults.broken(RuntimeError(OOM))
    assert gpu_faults.out_of_memory(RuntimeError("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"))
    assert not gpu_faults.out_of_memory(RuntimeError("shape mismatch"))


TASK = Task(
    task_id="test/add", name="add", level=1, origin="test",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.randn(1024, 1024)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
HEAD = """
import ctypes, os, signal
import torch
import triton
import triton.language as tl
@triton.jit
def add(x_ptr, out_ptr, n, step, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs.to(tl.int64) * step, x + 1, mask=offs < n)
@triton.jit
def wide(x_ptr, BLOCK: tl.constexpr):
    a = tl.load(x_ptr + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :])
    tl.store(x_ptr + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], tl.dot(a, a))
@triton.jit
def broken(x_ptr):
    tl.store(x_ptr, tl.nothing(1))
@triton.jit
def asserts(x_ptr):
    tl.device_assert(tl.load(x_ptr) > 1e30)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        {body}
"""
RIGHT = "add[(triton.cdiv(n, 1024),)](x, out, n, 1, BLOCK=1024); return out"
ON_CPU = {
    "runtime_error": "raise ValueError('no such thing')",
    "crash": "os._exit(3)",
    "memory": "return torch.empty(1 << 50) + x",
    "wrong_type": "return type('Odd', (torch.Tensor,), {})(x + 1)",
    "tampering": "import gc; [o._end.sendall(bytes(8)) for o in gc.get_objects() if type(o).__name__ == 'Wire']",
    "wrong_structure": "return [x + 1]",
}
ON_GPU = {
    "out_of_bounds": "add[(triton.cdiv(n, 1024),)](x, out, n, 1 << 42, BLOCK=1024); return out",
    "shared_memory": "wide[(1,)](x.clone(), BLOCK=256); return x + 1",
    "compile_error": "broken[(1,)](x); return x + 1",
    "kernel_error": "return x + 1 + torch.zeros(3, device=x.device)[torch.full((4,), 99, device=x.device)].sum()",
    "memory": "kept = [torch.empty(1 << 33, device=x.device) for _ in range(64)]; return x + 1",
    "crash": "ctypes.string_at(0)",
}


def _open(device, slot, **settings):
    stage = GpuStage(
        GpuSettings(own_work=False, device=device, protocol=timing.Protocol(rounds=2, budget_s=0.05, most_calls=4), **settings),
        sandbox.probe(), slot=slot,
    )  # fmt: skip
    stage.start()
    stage.wait_ready()
    return stage


@pytest.fixture(scope="module")
def cpu_stage():
    stage = _open("cpu", 130, wall_s=30.0)
    yield stage
    stage.stop()


@pytest.mark.parametrize("category", ON_CPU)
def test_a_fault_is_named_and_the_next_candidate_passes(cpu_stage, category):
    verdict = cpu_stage.judge(TASK, HEAD.format(body=ON_CPU[category]), "k")
    assert (verdict.kind, verdict.category) == ("fail", category), verdict.feedback
    good = cpu_stage.judge(TASK, HEAD.format(body="return 1 + x"), "k", timed=False)
    assert good.kind == "pass", good.feedback


@pytest.fixture(scope="module")
def gpu_stage():
    stage = _open("cuda:0", 134, wall_s=20.0)
    yield stage
    stage.stop()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("category", ON_GPU)
def test_a_fault_on_the_device_is_named_and_the_next_candidate_is_timed(gpu_stage, category):
    verdict = gpu_stage.judge(TASK, HEAD.format(body=ON_GPU[category]), "k")
    assert (verdict.kind, verdict.category) == ("fail", category), verdict.feedback
    good = gpu_stage.judge(TASK, HEAD.format(body=RIGHT), "k")
    assert good.kind == "pass", good.feedback
    assert not gpu_stage.broken


@pytest.mark.gpu
@needs_gpu
def test_a_task_that_no_gpu_holds_is_unsupported_with_numbers(gpu_stage):
    huge = Task(
        task_id="test/huge", name="huge", level=1, origin="test",
        source=TASK.source.replace("torch.randn(1024, 1024)", "torch.randn(1 << 21, 1 << 20)"),
    )  # fmt: skip
    for _ in range(2):
        verdict = gpu_stage.judge(huge, HEAD.format(body=RIGHT), "k")
        assert (verdict.kind, verdict.category) == ("unsupported", "unsupported"), verdict.feedback
        assert "smaller profile" in verdict.feedback
    assert gpu_stage.judge(TASK, HEAD.format(body=RIGHT), "k").kind == "pass"


BROKEN_TASK = Task(
    task_id="test/raises", name="raises", level=1, origin="test",
    source=TASK.source.replace("return x + 1", "raise ValueError('not today')"),
)  # fmt: skip


def test_a_task_that_does_not_run_is_not_the_candidates_fault(cpu_stage):
    verdict = cpu_stage.judge(BROKEN_TASK, HEAD.format(body="return 1 + x"), "k")
    assert (verdict.kind, verdict.category) == ("infra", "task_error")
    assert "not today" in verdict.feedback


def test_a_baseline_that_dies_is_not_the_candidates_fault(cpu_stage):
    only_once = TASK.source.replace(
        "return x + 1", "if hasattr(__import__('sys').modules.get('candidate'), 'ModelNew'): raise ValueError('baseline')\n        return x + 1"
    )  # fmt: skip
    task = Task(task_id="test/once", name="once", level=1, origin="test", source=only_once)
    verdict = cpu_stage.judge(task, HEAD.format(body="return 1 + x"), "k")
    assert (verdict.kind, "baseline" in verdict.feedback) == ("infra", True), verdict.feedback
    assert cpu_stage.judge(TASK, HEAD.format(body="return 1 + x"), "k").kind == "pass"


@pytest.mark.parametrize("which", ["candidates", "baselines"])
def test_a_zygote_that_is_gone_is_replaced_and_the_candidate_judged(cpu_stage, which):
    right = HEAD.format(body="return 1 + x")
    assert cpu_stage.judge(TASK, right, "k").kind == "pass"
    zygote = getattr(cpu_stage, which)
    for process in gpu_processes.below(zygote.pid):
        os.kill(process.pid, signal.SIGKILL)
    os.kill(zygote.pid, signal.SIGKILL)
    verdict = cpu_stage.judge(TASK, right, "k")
    assert verdict.kind == "pass", verdict.feedback
    assert cpu_stage.judge(TASK, right, "k").kind == "pass"


def test_a_baseline_that_somebody_killed_is_started_again(cpu_stage):
    right = HEAD.format(body="return 1 + x")
    assert cpu_stage.judge(TASK, right, "k").kind == "pass"
    below = gpu_processes.below(cpu_stage.baselines.pid)
    leaves = [process for process in below if not gpu_processes.below(process.pid)]
    for process in leaves:
        os.kill(process.pid, signal.SIGKILL)
    verdict = cpu_stage.judge(TASK, right, "k")
    assert leaves and verdict.kind == "pass", verdict.feedback


def test_a_context_that_is_lost_is_told_by_every_verdict_and_the_stage_still_stops(monkeypatch):
    def lost(*_):
        raise DriverError("cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)")

    stage = _open("cpu", 150)
    try:
        monkeypatch.setattr(GpuTask, "renew", lost)
        for _ in range(2):
            verdict = stage.judge(TASK, HEAD.format(body="return 1 + x"), "k")
            assert (verdict.kind, gpu_condition.fault_of(verdict)) == ("infra", "parent_error"), verdict.feedback
        monkeypatch.setattr(host_memory.HostArena, "close", lost)
    finally:
        stage.stop()
    assert stage.broken and not stage.candidates.pid and not stage.baselines.pid


def test_a_task_that_can_not_be_prepared_leaves_no_arena(monkeypatch):
    closed = []
    monkeypatch.setattr(host_memory.HostArena, "close", lambda arena: closed.append(arena))

    def no_room(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(GpuTask, "refill", no_room)
    with pytest.raises(torch.OutOfMemoryError):
        GpuTask(TASK.source, TASK.name, "full", "cpu")
    assert len(closed) == 1


def test_a_task_too_large_for_this_machine_is_refused_once(cpu_stage):
    huge = Task(
        task_id="test/huge", name="huge", level=1, origin="test",
        source=TASK.source.replace("torch.randn(1024, 1024)", "torch.randn(1 << 30, 1 << 18)"),
    )  # fmt: skip
    for _ in range(2):
        verdict = cpu_stage.judge(huge, HEAD.format(body="return 1 + x"), "k")
        assert (verdict.kind, verdict.category) == ("unsupported", "unsupported"), verdict.feedback
        assert "smaller profile" in verdict.feedback
