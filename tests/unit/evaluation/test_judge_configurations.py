"""An autotuner's other configurations are called too: on a GPU any of them may be the one that runs."""

import pytest

from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.tasks.task import Task

TASK = Task(
    task_id="test/scale", name="scale", level=1, origin="test",
    source="""
import torch
N = 1048576
PROFILES = {"cpu": {"N": 2000}}
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1
def get_inputs():
    return [torch.rand(N)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
CANDIDATE = """
import torch, triton, triton.language as tl
@triton.autotune(configs=[{configs}], key=["n"])
@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    tl.static_assert(BLOCK <= 1024)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2 + SHIFT, mask=offsets < n)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out, n = torch.empty_like(x), x.numel()
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
        return out
"""
FIRST = (256, 1)
RIGHT = {
    "one": [FIRST],
    "three": [FIRST, (128, 1), (512, 1)],
    "one that a static assert leaves out": [FIRST, (2048, 1)],
    "one that takes hundreds of times as long": [(1024, 1), (1, 1)],
}
WRONG = {
    "the second": ([FIRST, (256, 2)], "wrong_value", "Configuration 2 of autotune differs; the first one is right"),
    "the last": ([FIRST, (128, 1), (512, 1), (512, 3)], "wrong_value", "Configuration 4 of autotune differs"),
    "one that does not compile": ([FIRST, (96, 1)], "", "arange's range must be a power of 2"),
}


@pytest.fixture(scope="module", params=["", "cuda:90"])
def judge(request):
    one = Judge(JudgeSettings(target=request.param), slot=85)
    one.start()
    yield one
    one.stop()


def _verdict(judge, configurations):
    configs = ", ".join(f"triton.Config({{'BLOCK': {block}, 'SHIFT': {shift}}})" for block, shift in configurations)
    return judge.judge(TASK, CANDIDATE.format(configs=configs), "key")


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass(judge, name):
    verdict = _verdict(judge, RIGHT[name])
    assert verdict.kind == "pass", verdict.feedback
    assert verdict.speedup > 1.5, "the account is of the first one alone"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_found_behind_a_right_first_one(judge, name):
    configurations, category, said = WRONG[name]
    verdict = _verdict(judge, configurations)
    assert verdict.kind == "fail" and verdict.category in (category or ("kernel_error", "compile_error"))
    assert said in verdict.feedback
