"""CPU tier, then GPU tier: what goes on, what does not, and which verdict counts. The GPU stage runs on the CPU here."""

import itertools

import pytest

from core.evaluation.proof import Unproven
from core.evaluation.settings import JudgeSettings
from core.evaluation.tiers import TieredJudge, goes_on, open_judge, visible_gpu
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

TASK = Task(
    task_id="test/double", name="double", level=1, origin="test",
    source="""
import torch
PROFILES = {"cpu": {"N": 64}, "full": {"N": 4096}}
N = 4096
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
def get_inputs():
    return [torch.randn(4, N)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
CANDIDATE = """
import torch
import triton
import triton.language as tl
@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
LAUNCH = """out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out"""


def settings(**changes) -> JudgeSettings:
    return JudgeSettings(**{"device_class": "gpu", "speed": "none", "gpu_wall_s": 30.0, **changes})


@pytest.fixture(scope="module")
def judge():
    found = TieredJudge(settings(), "cpu", slot=70, own_work=False)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


def test_what_the_cpu_tier_refuses_never_reaches_the_gpu(judge):
    verdict = judge.judge(TASK, CANDIDATE.format(body="return x * 2"), "k")
    assert (verdict.kind, verdict.tier, verdict.category) == ("fail", "cpu", "no_kernel"), verdict.feedback


def test_what_the_cpu_tier_passes_is_judged_again(judge):
    """A Triton kernel can't be launched without a GPU, and that is what the second tier says here."""
    verdict = judge.judge(TASK, CANDIDATE.format(body=LAUNCH), "k")
    assert (verdict.kind, verdict.tier) == ("fail", "gpu"), verdict.feedback


@pytest.mark.parametrize(
    ("kind", "stage", "category", "wanted"),
    [
        ("pass", "", "", True),
        ("unsupported", "launch", "unsupported", True),
        ("fail", "launch", "timeout", True),
        ("fail", "launch", "memory", True),
        ("fail", "load", "timeout", False),
        ("fail", "static", "fallback", False),
        ("fail", "correctness", "wrong_value", False),
        ("infra", "load", "infra", False),
    ],
)
def test_what_goes_on(kind, stage, category, wanted):
    assert goes_on(Verdict(candidate_key="k", kind=kind, stage=stage, category=category)) is wanted


def test_a_machine_without_that_gpu_refuses(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(OSError, match="torch sees no GPU here"):
        open_judge(settings())
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    assert visible_gpu("gpu") == visible_gpu("a100") == "cuda:0"
    with pytest.raises(OSError, match="the GPU here is 'NVIDIA A100-SXM4-80GB'"):
        visible_gpu("h100")


def test_speed_and_device_class_must_fit():
    with pytest.raises(ValueError, match="needs a GPU"):
        JudgeSettings(speed="measured")
    with pytest.raises(ValueError, match="'h100' measures"):
        JudgeSettings(device_class="h100")


def test_what_the_gpu_tier_judges_by_is_part_of_the_key():
    variants = [settings(), settings(gpu_profile="small"), settings(gpu_wall_s=5.0), settings(speed="measured")]
    keys = [one.identity() for one in variants]
    assert all(a != b for a, b in itertools.combinations(keys, 2))
    assert "gpu_profile" not in JudgeSettings().identity()


def test_a_judge_whose_gpu_tier_fails_right_kernels_does_not_start():
    """Here that tier runs on the CPU, where no Triton kernel can be launched."""
    judge = TieredJudge(settings(), "cpu", slot=3, own_work=False, proves=True)
    judge.start()
    try:
        with pytest.raises(Unproven, match=r"fails a right kernel on this machine \(fail, "):
            judge.wait_ready()
    finally:
        judge.stop()
