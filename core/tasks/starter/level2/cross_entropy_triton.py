import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cross_entropy_kernel(logits_ptr, targets_ptr, out_ptr, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * classes + offs, mask=offs < classes, other=float("-inf"))
    top = tl.max(logits, axis=0)
    total = tl.log(tl.sum(tl.exp(logits - top), axis=0)) + top
    chosen = tl.load(logits_ptr + row * classes + tl.load(targets_ptr + row))
    tl.store(out_ptr + row, total - chosen)


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        rows, classes = logits.shape
        out = torch.empty((rows,), dtype=logits.dtype, device=logits.device)
        cross_entropy_kernel[(rows,)](logits, targets, out, classes, BLOCK=triton.next_power_of_2(classes))
        return out
