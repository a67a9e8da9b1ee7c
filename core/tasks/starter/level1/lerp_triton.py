import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lerp_kernel(start_ptr, end_ptr, out_ptr, n, share, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    start = tl.load(start_ptr + offs, mask=mask)
    end = tl.load(end_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, start + share * (end - start), mask=mask)


class ModelNew(nn.Module):
    def forward(self, start, end, share):
        out = torch.empty_like(start)
        n = start.numel()
        lerp_kernel[(triton.cdiv(n, 256),)](start, end, out, n, share, BLOCK=256)
        return out
