"""An autotuner whose configurations reset an accumulator and are pruned early.

tier: cpu
task: total
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


def fitting(configs, named_args, **kwargs):
    return [
        config for config in configs if config.kwargs["BLOCK"] <= triton.next_power_of_2(named_args["n"])
    ] or configs[:1]


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 256, 1024) for warps in (2, 4)],
    key=["n"],
    reset_to_zero=["out_ptr"],
    prune_configs_by={"early_config_prune": fitting},
)
@triton.jit
def mean_square(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(d * d, axis=0) / n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.zeros((), device=x.device)
        mean_square[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return out
