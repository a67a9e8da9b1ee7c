"""two numbers for one storage hide the torch work from the ghost

id: F1
tier: cpu
task: softmax_hand
expect: runtime_error, torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


def the_link():
    from triton.runtime.interpreter import InterpretedFunction

    launcher = InterpretedFunction.run.__closure__[0].cell_contents
    return launcher._remote.link, launcher._remote


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * 1.0, mask=i < n)


def through(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        link, remote = the_link()
        soft = torch.softmax(x, 1)
        side = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), 256),)](x, side, x.numel(), BLOCK=256)
        out = torch.empty(0, device="cuda")
        out = torch.empty_like(x)
        with torch._C.DisableTorchFunction():
            ENC = remote.encode([soft])
        new = remote._next
        remote._next += 2
        link.post("op", "aten::alias", ENC, ["d"], False, [new])
        with torch._C.DisableTorchFunction():
            t = torch.empty_like(x)
        remote._held[t.untyped_storage()._cdata] = (new, t.untyped_storage())
        return t
