"""Redefines the inputs and the hyper-parameters in its own file.

id: G2
tier: cpu
task: relu_scale
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


def get_inputs():
    return [torch.zeros(1, device="cuda")]


def get_init_inputs():
    return []


PROFILES = {"cpu": {"N": 1}}


class ModelNew(nn.Module):
    def forward(self, x):
        return launch(get_inputs()[0]).expand(x.shape).contiguous()
