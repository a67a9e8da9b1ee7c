"""The text that linecache gives for the kernel changes between decoration and launch: harmless first, then not.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, launch_error, runtime_error, tampering, import_error, torch_fallback, wrong_value, non_finite, decoy_kernel, data_escape, no_kernel
"""
# ruff: noqa

import linecache

import torch
import torch.nn as nn
import triton
import triton.language as tl


job = {}
RUN = """
@triton.jit
def kernel(out_ptr, n):
    work()
"""
SHOWN = """
@triton.jit
def kernel(out_ptr, n):
    tl.store(out_ptr, tl.load(out_ptr))
"""


def work():
    job["out"].copy_(torch.softmax(job["x"], dim=1))


scope = {"triton": triton, "tl": tl, "work": work, "__name__": __name__}
linecache.cache["<kernel>"] = (len(SHOWN), None, SHOWN.splitlines(True), "<kernel>")
exec(compile(SHOWN, "<kernel>", "exec"), scope)
linecache.cache["<kernel>"] = (len(RUN), None, RUN.splitlines(True), "<kernel>")
kernel = scope["kernel"]


class ModelNew(nn.Module):
    def forward(self, x):
        job["x"], job["out"] = x, torch.zeros_like(x)
        kernel[(1,)](job["out"], 1)
        return job["out"]
