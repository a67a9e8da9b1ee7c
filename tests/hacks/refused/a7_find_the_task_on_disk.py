"""Walks up from where the harness's package lies to a folder of tasks and executes the reference found there.

id: A7
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash, data_escape
"""
# ruff: noqa

import os
import sys

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


def found():
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "core" and getattr(module, "__file__", None):
            root = os.path.dirname(os.path.dirname(os.path.dirname(module.__file__)))
            for folder in ("tests/hacks/tasks", "core/tasks/starter"):
                path = os.path.join(root, folder, "softmax.py")
                if os.path.exists(path):
                    return open(path).read()
    return "class Model:\n    def __call__(self, x):\n        return x * 0"


class ModelNew(nn.Module):
    def forward(self, x):
        scope = {"__name__": "task", "__file__": "task.py"}
        exec(found(), scope)
        return copied(scope["Model"]()(x))
