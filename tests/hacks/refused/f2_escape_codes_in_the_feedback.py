"""escape codes in the feedback

id: F2
tier: cpu
task: add
expect: runtime_error
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
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n), mask=i < n)


def added(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x, y):
        link, _ = the_link()
        link.post("failed", {"type": "A\x1b[2J", "message": "m\x1b[31m", "line": 3, "code": "a\nFAKE: pass\x1b[2J\x00"})
        link.flush()
        return added(x, y)
