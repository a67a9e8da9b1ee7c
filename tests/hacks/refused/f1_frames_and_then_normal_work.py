"""Sends a forged trace ahead of the real one and goes on working as if nothing had been.

id: F1
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

import os

import msgspec

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


class ModelNew(nn.Module):
    def forward(self, x):
        body = msgspec.msgpack.encode(
            {"draw": 0, "tree": ["v", 1], "changed_inputs": [], "launches": 1, "blob_bytes": 0}
        )
        for fd in range(3, 64):
            try:
                os.write(fd, len(body).to_bytes(4, "little") + body)
            except OSError:
                pass
        return softmax(x) * 0.5
