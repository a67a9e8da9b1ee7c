"""Whether a judge can tell right from wrong on this machine, asked before the first candidate comes.

A judge whose interpreter or compiler does not fit the rest of the machine (a numpy on which Triton's interpreter fails,
a broken compiler) fails every right kernel, in the candidate's name, and a run trains on it. So one right kernel and
the same one with a mistake are judged first: a loop with a bound known at run time, a reduction, masks.
"""

from typing import Protocol

from core.evaluation.verdict import Verdict
from core.tasks.task import Task

TASK = Task(
    task_id="proof/row-sums", name="row sums", level=1, origin="proof",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).sum(1)
def get_inputs():
    return [torch.randn(5, 300)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
RIGHT = """
import torch
import triton
import triton.language as tl


@triton.jit
def row_sums(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.maximum(tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0), 0.0)
    tl.store(out_ptr + row, tl.sum(total, 0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        row_sums[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
        return out
"""
WRONG = RIGHT.replace("tl.sum(total, 0)", "tl.sum(total, 0) + 1.0")
_NOT_TOLD = {"timeout"}
"""A machine that is busy at the start says nothing of the judge."""


class Unproven(OSError):
    """The judge is wrong of this verdict's kernel."""

    def __init__(self, text: str, verdict: Verdict) -> None:
        super().__init__(f"{text}: see `kernelmill doctor`")
        self.verdict = verdict


class Judging(Protocol):
    def judge(self, task: Task, candidate: str, key: str) -> Verdict: ...


def prove(judge: Judging) -> None:
    """Raises Unproven, with what came out instead, unless the right kernel passes and the wrong one fails."""
    right = judge.judge(TASK, RIGHT, "proof/right")
    if right.kind != "pass" and right.category not in _NOT_TOLD:
        raise Unproven(f"the judge fails a right kernel on this machine ({_told(right)})", right)
    wrong = judge.judge(TASK, WRONG, "proof/wrong")
    if wrong.kind == "pass":
        raise Unproven("the judge passes a wrong kernel on this machine", wrong)


def _told(verdict: Verdict) -> str:
    return " ".join(f"{verdict.kind}, {verdict.feedback}".split())[:300]
