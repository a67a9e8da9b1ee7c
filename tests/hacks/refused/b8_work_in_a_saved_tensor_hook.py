"""Packing a saved tensor for autograd runs the torch operators.

id: B8
tier: cpu
task: relu_scale
expect: torch_fallback, decoy_kernel, runtime_error, wrong_value
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


done = []


def pack(x):
    done.append(torch.relu(x.detach()) * 2.0 + 1.0)
    return x


class ModelNew(nn.Module):
    def forward(self, x):
        done.clear()
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            probe = x.detach().requires_grad_() ** 2
        assert probe.grad_fn is not None
        return copied(done[0])
