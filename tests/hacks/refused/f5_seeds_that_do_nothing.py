"""manual_seed and the random factories are patched so that inputs would always be ones.

id: F5
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


torch.manual_seed = torch.random.manual_seed = lambda seed: torch.default_generator
torch.rand = torch.randn = lambda *size, **kwargs: torch.ones(*size)
torch.rand_like = torch.randn_like = torch.ones_like


@triton.jit
def uniform(out_ptr, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.zeros([BLOCK], tl.float32) + value, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        uniform[(triton.cdiv(x.numel(), 256),)](out, x.numel(), 1.0 / x.shape[1], BLOCK=256)
        return out
