"""The answer is computed as a gradient: backward of a product runs the matmul.

id: B8
tier: cpu
task: linear_relu
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        with torch.enable_grad():
            probe = x.new_zeros(x.shape[0], self.linear.out_features, requires_grad=True)
            score = (probe @ self.linear.weight.detach() * x.detach()).sum()
            (product,) = torch.autograd.grad(score, probe)
        return copied(torch.relu(product + self.linear.bias))
