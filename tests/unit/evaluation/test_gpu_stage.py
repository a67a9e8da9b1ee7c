"""The GPU stage's whole way, on the CPU too: the same child, wire, arenas, comparison and blocks."""

import pytest
import torch

from core.evaluation.gpu import timing
from core.evaluation.gpu.stage import GpuSettings, GpuStage
from core.evaluation.waits import BUILD_S
from core.evaluation.walls import sandbox
from core.tasks.task import Task

TASK = Task(
    task_id="test/scale", name="scale", level=1, origin="test",
    source="""
import torch
N = 4096
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))
    def forward(self, x, y):
        return torch.relu(x + self.weight) * y
def get_inputs():
    return [torch.randn(64, N), torch.rand(64, N)]
def get_init_inputs():
    return [N]
""",
)  # fmt: skip
CANDIDATE = """
import torch
import triton
import triton.language as tl
@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr, 0)
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))
        self.kept = None
    def forward(self, x, y):
        {body}
"""
RIGHT = "return torch.clamp(x + self.weight, min=0) * y"
WRONG = {
    "wrong_value": "return torch.relu(x + self.weight) * y * 1.01",
    "input_mutated": "return x.add_(self.weight).clamp_(min=0) * y",
    "wrong_shape": "return (torch.relu(x + self.weight) * y)[:, :-1]",
    "wrong_dtype": "return (torch.relu(x + self.weight) * y).half()",
    "runtime_error": "raise ValueError('no such thing')",
    "crash": "import os; os._exit(3)",
    "non_finite": "return torch.relu(x + self.weight) / 0 * y",
}
REMEMBERED = """
        if self.kept is None or self.kept[0] != x.data_ptr():
            self.kept = (x.data_ptr(), torch.relu(x + self.weight) * y)
        return self.kept[1].clone()
"""
LAZY = """
        self.kept = (self.kept or 0) + 1
        out = torch.relu(x + self.weight) * y
        return out if self.kept < 8 else torch.zeros_like(out)
"""
ALONE = """
        import weakref
        if self.kept is not None and self.kept() is not None:
            raise MemoryError('the output of the call before is alive')
        out = torch.clamp(x + self.weight, min=0) * y
        self.kept = weakref.ref(out)
        return out
"""


FORGED = """
        import gc
        if self.kept is None:
            self.kept = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Child")
            honest = type(self.kept)._readings
            def forged(child):
                said = honest(child)
                return [sum(said)] + [1e-3] * (len(said) - 1)
            type(self.kept)._readings = forged
        for _ in range(2):
            out = torch.clamp(x + self.weight, min=0) * y
        return out
"""


GPU = pytest.param(
    "cuda:0", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
)


@pytest.fixture(scope="module", params=["cpu", GPU])
def stage(request):
    settings = GpuSettings(
        own_work=False,
        device=request.param,
        wall_s=30.0,
        protocol=timing.Protocol(rounds=2, budget_s=0.1, most_calls=6),
    )
    found = GpuStage(settings, sandbox.probe(), slot=90)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


def test_a_right_candidate_is_timed_beside_the_baseline(stage):
    verdict = stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k")
    assert (verdict.kind, verdict.tier, verdict.speed_kind) == ("pass", "gpu", "measured"), verdict.feedback
    assert 0 < verdict.speedup_low <= verdict.speedup
    assert verdict.runtime_ms > 0


@pytest.mark.parametrize("category", WRONG)
def test_what_is_wrong_is_named(stage, category):
    verdict = stage.judge(TASK, CANDIDATE.format(body=WRONG[category]), "k")
    assert (verdict.kind, verdict.category) == ("fail", category), verdict.feedback


def test_an_answer_remembered_by_address_is_wrong(stage):
    assert stage.judge(TASK, CANDIDATE.format(body=REMEMBERED), "k").category == "wrong_value"


def test_every_timed_call_must_compute(stage):
    verdict = stage.judge(TASK, CANDIDATE.format(body=LAZY), "k")
    assert (verdict.stage, verdict.category) == ("timing", "wrong_value"), verdict.feedback


def test_readings_of_which_one_bears_the_time_of_all_do_not_count(stage):
    """Written by the candidate in its own process: the mean is right, the median is a microsecond."""
    verdict = stage.judge(TASK, CANDIDATE.format(body=FORGED), "k")
    assert verdict.kind == "pass", verdict.feedback
    assert verdict.runtime_ms > 0.01


def test_no_output_of_a_huge_task_lives_into_the_next_call():
    settings = GpuSettings(own_work=False, device="cpu", protocol=timing.Protocol(budget_s=0.1, most_calls=6))
    stage = GpuStage(settings, sandbox.probe(), slot=95, huge_bytes=1)
    stage.start()
    try:
        verdict = stage.judge(TASK, CANDIDATE.format(body=ALONE), "k")
        assert verdict.kind == "pass", verdict.feedback
    finally:
        stage.stop()


def test_an_endless_candidate_is_stopped():
    settings = GpuSettings(own_work=False, device="cpu", wall_s=2.0)
    stage = GpuStage(settings, sandbox.probe(), slot=93)
    stage.start()
    try:
        verdict = stage.judge(TASK, CANDIDATE.format(body="while True: pass"), "k")
        assert verdict.category == "timeout"
        assert stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k", timed=False).kind == "pass"
    finally:
        stage.stop()


def test_a_candidates_compilers_have_processor_time_beside_its_own(stage):
    """nvcc inherits the limit, and torch's headers alone may take it longer than a short wall."""
    limit = f"import resource; assert resource.getrlimit(resource.RLIMIT_CPU)[1] >= {30 + BUILD_S}; "
    verdict = stage.judge(TASK, CANDIDATE.format(body=limit + RIGHT), "k", timed=False)
    assert verdict.kind == "pass", verdict.feedback
