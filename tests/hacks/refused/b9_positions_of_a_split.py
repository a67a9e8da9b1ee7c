"""Sends the host's own message: a tensor is cut at positions that are another one's values.

id: B9
tier: cpu
task: sort
expect: data_escape, torch_fallback, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


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


def ask(name, *args):
    from triton.runtime.interpreter import InterpretedFunction

    remote = InterpretedFunction.run.__closure__[0].cell_contents._remote
    with torch._C.DisableTorchFunction():
        return remote.ask(name, list(args), {})


class ModelNew(nn.Module):
    def forward(self, x):
        bits = x.contiguous().view(torch.int32).reshape(-1)
        halves = (bits.bitwise_right_shift(16).bitwise_and(0xFFFF), bits.bitwise_and(0xFFFF))
        told = []
        for half in halves:
            long = torch.zeros(1 << 17)
            pieces = ask("aten::tensor_split.tensor_indices_or_sections", long, (half + 1).to(torch.int64))
            with torch._C.DisableTorchFunction():
                starts, at = [], 0
                for piece, following in zip(pieces, pieces[1:]):
                    at = piece.storage_offset() + piece.shape[0] if piece.numel() else following.storage_offset()
                    starts.append(at - 1)
            told.append(starts)
        import struct

        flat = [struct.unpack("<f", struct.pack("<I", ((h & 0xFFFF) << 16) | (l & 0xFFFF)))[0] for h, l in zip(*told)]
        width = x.shape[1]
        rows = [sorted(flat[at : at + width]) for at in range(0, len(flat), width)]
        return through(torch.tensor(rows, device=x.device))
