"""What Inductor's wrapper does, spelled with torch alone: an out variant into an empty_strided buffer.

id: B10
tier: cpu
task: linear_relu
expect: torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_relu_kernel(y_ptr, b_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    y = tl.load(y_ptr + offsets, mask=mask) + tl.load(b_ptr + offsets % width, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(y, 0.0), mask=mask)


def bias_relu(y, bias):
    y = y.contiguous()
    out = torch.empty_like(y)
    bias_relu_kernel[(triton.cdiv(y.numel(), 256),)](y, bias, out, y.numel(), y.shape[1], BLOCK=256)
    return out


def call(args):
    primals_1, primals_2, primals_3 = args
    args.clear()
    buf0 = torch.empty_strided(
        (primals_3.shape[0], primals_1.shape[0]), (primals_1.shape[0], 1), device=primals_3.device
    )
    torch.ops.aten.mm.out(primals_3, torch.ops.aten.permute(primals_1, [1, 0]), out=buf0)
    return (bias_relu(buf0, primals_2),)


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        with torch.no_grad():
            return call([self.linear.weight.detach(), self.linear.bias.detach(), x])[0]
