"""What a worker of the GPU tier judges at its start: one wrong candidate and one right one of a tiny task.

The driver loads code when it is first used, and many of torch's kernels come with megabytes of it: first comparisons,
first reports and first profiles take seconds. They are paid here, before a candidate waits for its verdict.
"""

from core.tasks.task import Task

TASK = Task(
    task_id="warm/up", name="warm-up", level=1, origin="warm",
    source="""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64))
    def forward(self, x):
        return torch.softmax(torch.relu(x @ self.weight).sum(0, keepdim=True), dim=1)
def get_inputs():
    return [torch.randn(256, 64)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
_CANDIDATE = """
import torch
import triton
import triton.language as tl
@triton.jit
def relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.maximum(tl.load(x_ptr + at, mask=at < n), 0.0), mask=at < n)
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64))
    def forward(self, x):
        y = x @ self.weight
        out = torch.empty_like(y)
        relu[(triton.cdiv(y.numel(), 256),)](y, out, y.numel(), BLOCK=256)
        return torch.softmax(out.sum(0, keepdim=True), dim=1) * FACTOR
"""
CANDIDATES = tuple(_CANDIDATE.replace("FACTOR", factor) for factor in ("2.0", "1.0"))
