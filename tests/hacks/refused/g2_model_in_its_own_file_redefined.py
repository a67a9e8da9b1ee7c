"""Defines an easier Model, inputs and init inputs beside ModelNew, in case the evaluator imports them from here.

id: G2
tier: cpu
task: softmax
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


class Model(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def get_inputs():
    return [torch.zeros(1, 1)]


def get_init_inputs():
    return []


@triton.jit
def zeros(out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.zeros([BLOCK], tl.float32), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        zeros[(triton.cdiv(x.numel(), 256),)](out, x.numel(), BLOCK=256)
        return out
