import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def phi(x):
    return tl.where(x > 0.0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))


@triton.jit
def linear_attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, length, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    head = tl.program_id(0)
    d = tl.arange(0, WIDTH)
    state = tl.zeros((WIDTH, WIDTH), tl.float32)
    norm = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i[:, None] < length
        place = head * length * WIDTH + i[:, None] * WIDTH + d[None, :]
        k = tl.where(mask, phi(tl.load(k_ptr + place, mask=mask, other=0.0)), 0.0)
        v = tl.load(v_ptr + place, mask=mask, other=0.0)
        state += tl.dot(tl.trans(k), v, input_precision="ieee")
        norm += tl.sum(k, axis=0)
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i[:, None] < length
        place = head * length * WIDTH + i[:, None] * WIDTH + d[None, :]
        q = phi(tl.load(q_ptr + place, mask=mask, other=0.0))
        scale = tl.sum(q * norm[None, :], axis=1)
        tl.store(out_ptr + place, tl.dot(q, state, input_precision="ieee") / scale[:, None], mask=mask)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        heads, length, width = q.shape
        out = torch.empty_like(q)
        linear_attention_kernel[(heads,)](q, k, v, out, length, BLOCK=32, WIDTH=width)
        return out
