"""Subclasses whatever class called Model exists in the process and passes.

id: B4
tier: cpu
task: relu_scale
expect: no_kernel, torch_fallback, wrong_value, runtime_error, wrong_structure
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


def find():
    todo = [nn.Module]
    while todo:
        for found in todo.pop().__subclasses__():
            if found.__name__ == "Model":
                return found
            todo.append(found)
    return nn.Identity


class ModelNew(find()):
    pass
