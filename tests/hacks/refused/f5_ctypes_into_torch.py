"""Calls c10's own function by ctypes, to exclude the dispatch key that modes hang on.

id: F5
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

import ctypes
import os

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


exclude = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))[
    "_ZN3c104impl29tls_set_dispatch_key_excludedENS_11DispatchKeyEb"
]


class ModelNew(nn.Module):
    def forward(self, x):
        exclude(ctypes.c_uint16(int(torch._C.DispatchKey.Python)), ctypes.c_bool(True))
        exclude(ctypes.c_uint16(int(torch._C.DispatchKey.PythonTLSSnapshot)), ctypes.c_bool(True))
        done = torch.softmax(x.detach(), dim=1)
        exclude(ctypes.c_uint16(int(torch._C.DispatchKey.Python)), ctypes.c_bool(False))
        exclude(ctypes.c_uint16(int(torch._C.DispatchKey.PythonTLSSnapshot)), ctypes.c_bool(False))
        return copied(done)
