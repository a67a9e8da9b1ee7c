"""Half precision end to end: right kernels pass, visible loss of precision fails; TF32 is no float32."""

import pytest
import torch

from core.evaluation.gpu import timing
from core.evaluation.gpu.stage import GpuSettings, GpuStage
from core.evaluation.walls import sandbox
from core.tasks.task import Task

GPU = pytest.param(
    "cuda:0", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
)
TASK = """
import torch
K = 1024
class Model(torch.nn.Module):
    def forward(self, a, b):
        return {body}
def get_inputs():
    return [({random}(64, K){scale}).to(torch.{dtype}), ({random}(K, 64){scale}).to(torch.{dtype})]
def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl
@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, K, N: tl.constexpr, BLOCK: tl.constexpr, LOSSY: tl.constexpr, PRECISION: tl.constexpr):
    rows = tl.program_id(0) * 16 + tl.arange(0, 16)
    columns = tl.program_id(1) * 16 + tl.arange(0, 16)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((16, 16), out_ptr.dtype.element_ty if LOSSY else tl.float32)
    for start in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows[:, None] * K + start + inner[None, :])
        b = tl.load(b_ptr + (start + inner[:, None]) * N + columns[None, :])
        part = tl.dot(a, b, input_precision=PRECISION)
        total = (total + part).to(total.dtype)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], total.to(out_ptr.dtype.element_ty))
class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        {body}
"""
TRITON = (
    "out = torch.empty(64, 64, device=a.device, dtype=a.dtype); "
    "matmul[(4, 4)](a, b, out, a.shape[1], 64, BLOCK=32, LOSSY={lossy}, PRECISION='{precision}'); return out"
)
CHUNKS = "out = sum((a[:, i:i + 64].float() @ b[i:i + 64].float() for i in range(0, 1024, 64))); return out.to(a.dtype)"
LOSSY = (
    "out = torch.zeros(64, 64, dtype=a.dtype, device=a.device)\n"
    "        for i in range(0, 1024, 8): out = out + a[:, i:i + 8] @ b[i:i + 8]\n"
    "        return out"
)
ROUNDED = "return torch.stack([(a.{to}().float() @ b.{to}().float())]).squeeze(0)"


def _task(dtype, body="a @ b", random="torch.rand", scale=""):
    source = TASK.format(dtype=dtype, body=body, random=random, scale=scale)
    return Task(task_id=f"test/{dtype}", name=dtype, level=1, origin="test", source=source)


@pytest.fixture(scope="module", params=["cpu", GPU])
def stage(request):
    settings = GpuSettings(
        own_work=False,
        device=request.param,
        wall_s=60.0,
        protocol=timing.Protocol(rounds=2, budget_s=0.05, most_calls=4),
    )
    found = GpuStage(settings, sandbox.probe(), slot=140)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


@pytest.mark.parametrize("random", ["torch.rand", "torch.randn"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_sums_in_another_order_are_right(stage, dtype, random):
    scale = " * 0.1" if dtype == "float16" else ""
    body = "return torch.flip(torch.flip(a, (1,)) @ torch.flip(b, (0,)), (0,)).flip(0)"
    for candidate in (CHUNKS, body):
        verdict = stage.judge(
            _task(dtype, random=random, scale=scale), CANDIDATE.format(body=candidate), "k", timed=False
        )
        assert verdict.kind == "pass", verdict.feedback


@pytest.mark.parametrize("random", ["torch.rand", "torch.randn"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_in_half_precision_are_wrong(stage, dtype, random):
    scale = " * 0.1" if dtype == "float16" else ""
    verdict = stage.judge(_task(dtype, random=random, scale=scale), CANDIDATE.format(body=LOSSY), "k", timed=False)
    assert verdict.category == "wrong_value", verdict.feedback


@pytest.mark.parametrize("random", ["torch.rand", "torch.randn"])
@pytest.mark.parametrize("to", ["half", "bfloat16"])
def test_half_precision_is_no_float32(stage, to, random):
    verdict = stage.judge(
        _task("float32", random=random), CANDIDATE.format(body=ROUNDED.format(to=to)), "k", timed=False
    )
    assert verdict.category == "wrong_value", verdict.feedback


@pytest.mark.gpu
@pytest.mark.parametrize("stage", [GPU], indirect=True)
@pytest.mark.parametrize(
    ("dtype", "lossy", "precision", "category"),
    [
        ("bfloat16", False, "ieee", ""),
        ("float16", False, "ieee", ""),
        ("float32", False, "ieee", ""),
        ("bfloat16", True, "ieee", "wrong_value"),
        ("float32", False, "tf32", "wrong_value"),
    ],
)
def test_kernels_of_every_precision(stage, dtype, lossy, precision, category):
    body = TRITON.format(lossy=lossy, precision=precision)
    verdict = stage.judge(_task(dtype, random="torch.randn"), CANDIDATE.format(body=body), "k")
    assert (verdict.kind, verdict.category) == ("fail" if category else "pass", category), verdict.feedback
    if not category:
        assert verdict.speed_kind == "measured"
