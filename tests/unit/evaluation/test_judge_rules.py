"""What the judge does beside comparing outputs: sizes of its own, kernels replaced by garbage, calls made again."""

from collections.abc import Callable

import pytest

from core.evaluation.judge import Judge
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

Ask = Callable[[str], Verdict]
Variant = Callable[..., str]
STORE = "tl.store(out_ptr + offsets, {}, mask=mask)"
LOAD = "tl.load(x_ptr + offsets, mask=mask)"


def _task(name: str, forward: str) -> Task:
    source = f"""
import torch
N = 1048576
PROFILES = {{"cpu": {{"N": 1000}}}}
class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}
def get_inputs():
    return [torch.randn(N)]
def get_init_inputs():
    return []
"""
    return Task(task_id=f"test/{name}", name=name, level=1, origin="test", source=source)


WRITTEN_IN = {
    "the grid": {"after": "out = torch.empty_like(x)\n        kernel[(4,)](x, out, n, BLOCK=256)"},
    "the number of elements": {"before": "n = 1000"},
    "the block": {"after": "out = torch.empty_like(x)\n        kernel[(1,)](x, out, n, BLOCK=1024)"},
    "the output's size": {"before": "out = torch.empty(1000, device=x.device)"},
}


@pytest.mark.parametrize("name", WRITTEN_IN)
def test_sizes_written_into_a_candidate_do_not_hold(verdict_of: Ask, variant: Variant, name: str) -> None:
    verdict = verdict_of(variant(**WRITTEN_IN[name]))
    assert verdict.kind == "fail"
    assert verdict.category in ("non_finite", "wrong_shape", "out_of_bounds"), verdict.feedback


TYPES = {
    "bool": ("torch.sqrt(torch.relu(x * 2.0 + 1.0)) > 1.0", "x > 0", "torch.bool", f"{LOAD} > 0.0"),
    "int64": (
        "torch.round(torch.relu(x * 2.0 + 3.0)).sign().long()",
        "(x * 2.0 + 3.0 > 0.5).long()",
        "torch.int64",
        f"({LOAD} * 2.0 + 3.0 > 0.5).to(tl.int64)",
    ),
    "int8": (
        "torch.round(torch.relu(x * 2.0 + 3.0)).sign().to(torch.int8)",
        "(x * 2.0 + 3.0 > 0.5).to(torch.int8)",
        "torch.int8",
        f"({LOAD} * 2.0 + 3.0 > 0.5).to(tl.int8)",
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_outputs_of_few_values_need_their_kernel(judge: Judge, variant: Variant, name: str) -> None:
    """One bit may be right by accident when a kernel's stores are replaced by garbage; a decoy's always is."""
    forward, by_torch, dtype, by_kernel = TYPES[name]
    task = _task(name, forward)
    fresh = f"out = torch.empty(n, dtype={dtype}, device=x.device)"
    honest = judge.judge(task, variant(body=STORE.format(by_kernel), before=fresh), "k")
    assert honest.kind == "pass", honest.feedback
    decoy = judge.judge(task, variant(body=STORE.format(LOAD), after=f"out = {by_torch}"), "k")
    assert decoy.category in ("decoy_kernel", "torch_fallback"), decoy.feedback


LATER = "self.calls = getattr(self, 'calls', 0) + 1"
AGAIN = {
    "another answer after the first calls": (
        {"before": f"{LATER}\n        if self.calls > 3: x = x + 1"},
        ("nondeterministic", "wrong_value", "torch_fallback"),
    ),
    "the answer before": (
        {"before": f"{LATER}\n        if self.calls > 3: return self.old", "after": "self.old = out"},
        ("nondeterministic",),
    ),
    "the answer before, sooner": (
        {"before": f"{LATER}\n        if self.calls > 2: return self.old", "after": "self.old = out"},
        ("nondeterministic",),
    ),
    "answers by a key of the input": (
        {"init": "self.old = {}", "after": "out = self.old.setdefault(tuple(x.shape), out)"},
        ("wrong_value", "nondeterministic", "output_reused", "decoy_kernel"),
    ),
    "one buffer for all answers": (
        {"init": "self.old = {}", "before": "out = self.old.setdefault(n, out)"},
        ("output_reused",),
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_later_calls_are_held_to_the_same(verdict_of: Ask, variant: Variant, name: str) -> None:
    places, categories = AGAIN[name]
    verdict = verdict_of(variant(**places))
    assert verdict.kind == "fail" and verdict.category in categories, verdict.feedback


def test_counting_calls_alone_is_no_offence(verdict_of: Ask, variant: Variant) -> None:
    assert verdict_of(variant(before=LATER)).kind == "pass"
