"""operators replaced by message

id: F1
tier: cpu
task: add
expect: tampering, runtime_error
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
        link, remote = the_link()
        r = []
        for n, a in (
            ("aten::__dir__.__call__", []),
            ("aten::__setattr__.__call__", ["mm", 5]),
            ("aten::__dict__.clear", []),
            ("aten::mm.overloads", []),
        ):
            try:
                r.append(str(remote.ask(n, a, {}))[:60])
            except Exception as e:
                r.append(str(e)[:60])
        if x.shape:
            raise ValueError(str(r))
