import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def log_softmax_kernel(x_ptr, out_ptr, classes, pixels, BLOCK: tl.constexpr):
    start = (tl.program_id(0) // pixels) * classes * pixels + tl.program_id(0) % pixels
    offs = tl.arange(0, BLOCK)
    mask = offs < classes
    x = tl.load(x_ptr + start + offs * pixels, mask=mask, other=float("-inf"))
    x = x - tl.max(x, axis=0)
    out = x - tl.log(tl.sum(tl.exp(x), axis=0))
    tl.store(out_ptr + start + offs * pixels, out, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        batch, classes, pixels = x.shape
        out = torch.empty_like(x)
        block = triton.next_power_of_2(classes)
        log_softmax_kernel[(batch * pixels,)](x, out, classes, pixels, BLOCK=block)
        return out
