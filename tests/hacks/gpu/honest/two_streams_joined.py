"""Halves on two side streams that wait for the current one and are joined again.

tier: gpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x, out):
    relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def forward(self, x):
        current = torch.cuda.current_stream()
        out = torch.empty_like(x)
        half = x.numel() // 2
        for stream, part in zip(self.streams, (slice(0, half), slice(half, None))):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                launch(x[part], out[part])
        for stream in self.streams:
            current.wait_stream(stream)
        return out
