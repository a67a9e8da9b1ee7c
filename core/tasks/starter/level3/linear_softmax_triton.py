import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_softmax_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, batch, width, classes, BLOCK: tl.constexpr, CLASSES: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CLASSES)
    total = tl.zeros((BLOCK, CLASSES), tl.float32)
    for start in range(0, width, 32):
        d = start + tl.arange(0, 32)
        x = tl.load(
            x_ptr + i[:, None] * width + d[None, :], mask=(i[:, None] < batch) & (d[None, :] < width), other=0.0
        )
        mask = (c[None, :] < classes) & (d[:, None] < width)
        w = tl.load(weight_ptr + c[None, :] * width + d[:, None], mask=mask, other=0.0)
        total += tl.dot(x, w, input_precision="ieee")
    total += tl.load(bias_ptr + c, mask=c < classes, other=0.0)[None, :]
    total = tl.where(c[None, :] < classes, total, float("-inf"))
    weights = tl.exp(total - tl.max(total, axis=1)[:, None])
    out = weights / tl.sum(weights, axis=1)[:, None]
    tl.store(out_ptr + i[:, None] * classes + c[None, :], out, mask=(i[:, None] < batch) & (c[None, :] < classes))


class ModelNew(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        batch, width = x.shape
        weight, bias = self.head.weight, self.head.bias
        classes = weight.shape[0]
        out = torch.empty((batch, classes), dtype=x.dtype, device=x.device)
        padded = max(16, triton.next_power_of_2(classes))
        grid = (triton.cdiv(batch, 32),)
        linear_softmax_kernel[grid](x, weight, bias, out, batch, width, classes, BLOCK=32, CLASSES=padded)
        return out
