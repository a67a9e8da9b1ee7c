"""A main block with its own check, a benchmark function and get_inputs of its own.

tier: cpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import time

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


class ModelNew(nn.Module):
    def forward(self, x):
        return launch(x)


def get_inputs():
    return [torch.rand(1000, device="cuda")]


def get_init_inputs():
    return []


def benchmark(model, x, repeats=100):
    start = time.perf_counter()
    for _ in range(repeats):
        model(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    (x,) = get_inputs()
    torch.testing.assert_close(ModelNew()(x), torch.relu(x) * 2.0 + 1.0)
    print("PASS", benchmark(ModelNew(), x))
