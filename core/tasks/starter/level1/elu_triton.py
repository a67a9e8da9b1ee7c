import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def elu_kernel(x_ptr, out_ptr, n, alpha, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    # exp of the negative part only: it can't overflow.
    low = alpha * (tl.exp(tl.minimum(x, 0.0)) - 1.0)
    tl.store(out_ptr + offs, tl.where(x > 0.0, x, low), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        elu_kernel[(triton.cdiv(n, 256),)](x, out, n, self.alpha, BLOCK=256)
        return out
