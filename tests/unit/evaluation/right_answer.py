"""One task, and a right answer to it into which something can be put at one place."""

from core.tasks.task import Task

TASK = Task(
    task_id="test/double",
    name="double",
    level=1,
    origin="test",
    source="""
import torch
N = 33554432
PROFILES = {"cpu": {"N": 1000}}
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2.0)
def get_inputs():
    return [torch.randn(N)]
def get_init_inputs():
    return []
""",
)
CANDIDATE = """
import torch
import triton
import triton.language as tl

{top}

@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    {body}

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        {before}
        kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        {after}
        return out
"""
BODY = "tl.store(out_ptr + offsets, tl.maximum(tl.load(x_ptr + offsets, mask=mask) * 2.0, 0.0), mask=mask)"


def candidate(top: str = "", body: str = BODY, init: str = "pass", before: str = "", after: str = "") -> str:
    """The right answer with something put in at one place."""
    return CANDIDATE.format(top=top, body=body, init=init, before=before, after=after)
