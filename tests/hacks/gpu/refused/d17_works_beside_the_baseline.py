"""A slow kernel; a thread keeps the GPU busy for 30 ms after its own calls, when eager is clocked.

id: D17
tier: gpu
task: softmax
expect: tampering, unpaid, timeout
most: 1.0
"""
# ruff: noqa

import threading
import time

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def slow_kernel(x_ptr, out_ptr, columns):
    row = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, 32)
    top = tl.full((32,), -float("inf"), tl.float32)
    for start in range(0, columns, 32):
        mask = start + offsets < columns
        top = tl.maximum(top, tl.load(x_ptr + row + start + offsets, mask=mask, other=-float("inf")))
    top_of_row = tl.max(top, axis=0)
    total = tl.zeros((32,), tl.float32)
    for start in range(0, columns, 32):
        mask = start + offsets < columns
        total += tl.exp(tl.load(x_ptr + row + start + offsets, mask=mask, other=-float("inf")) - top_of_row)
    sum_of_row = tl.sum(total, axis=0)
    for start in range(0, columns, 32):
        mask = start + offsets < columns
        x = tl.load(x_ptr + row + start + offsets, mask=mask, other=-float("inf"))
        tl.store(out_ptr + row + start + offsets, tl.exp(x - top_of_row) / sum_of_row, mask=mask)


def slow(x):
    out = torch.empty_like(x)
    slow_kernel[(x.shape[0],)](x, out, x.shape[1], num_warps=1)
    return out


LAST = [0.0]
BUFFER = []


def between():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        while True:
            idle = time.perf_counter() - LAST[0]
            if 0.001 < idle < 0.03 and BUFFER:
                for _ in range(4):
                    BUFFER[0].zero_()
                stream.synchronize()
            else:
                time.sleep(0.0005)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 12:
            BUFFER.append(torch.empty(1 << 28, dtype=torch.uint8, device=x.device))
            threading.Thread(target=between, daemon=True).start()
        out = slow(x)
        LAST[0] = time.perf_counter()
        return out
