"""Tasks that differ in a factor, and a right kernel of each: `TASK.format(factor=2)`, `KERNEL.format(factor=2)`."""

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * {factor} + 1.0
def get_inputs():
    return [torch.randn(60, 70)]
def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import triton
import triton.language as tl
@triton.jit
def scaled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, tl.maximum(x, 0.0) * {factor} + 1.0, mask=at < n)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        scaled[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out
"""
