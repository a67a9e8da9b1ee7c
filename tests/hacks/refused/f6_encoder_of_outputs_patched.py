"""Patches whatever function of the harness turns outputs into bytes, to send torch's answer.

id: F6
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash, wrong_type, output_reused
"""
# ruff: noqa

import sys

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


for name, module in list(sys.modules.items()):
    if name.startswith("core.evaluation") and hasattr(module, "encode"):
        stock = module.encode

        def encode(value, *args, stock=stock):
            if isinstance(value, torch.Tensor) and hasattr(value, "source"):
                value = torch.softmax(value.__dict__.pop("source"), dim=1)
            return stock(value, *args)

        module.encode = encode
    if name.startswith("core.evaluation") and hasattr(module, "_odd_type"):
        module._odd_type = lambda value: ""


class ModelNew(nn.Module):
    def forward(self, x):
        out = softmax(x[:1].contiguous()).expand(x.shape).contiguous()
        out.source = x
        return out
