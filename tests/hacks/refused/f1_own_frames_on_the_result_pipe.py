"""Writes well-formed frames with made-up outputs to descriptors that look like pipes, then exits with 0.

id: F1
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

import os
import stat

import msgspec

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
    def forward(self, x):
        body = msgspec.msgpack.encode({"trace": {"kernels": [], "operators": [], "pristine": True}, "blob_bytes": 0})
        for fd in range(3, 64):
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode) or stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, len(body).to_bytes(4, "little") + body)
            except OSError:
                pass
        os._exit(0)
