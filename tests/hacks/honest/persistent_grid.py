"""As many programs as the card has multiprocessors; each walks over several blocks.

tier: cpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def persistent(x_ptr, out_ptr, n, blocks, BLOCK: tl.constexpr):
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        i = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n)
        tl.store(out_ptr + i, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        blocks = triton.cdiv(x.numel(), 64)
        out = torch.empty_like(x)
        persistent[(min(blocks, processors),)](x, out, x.numel(), blocks, BLOCK=64)
        return out
