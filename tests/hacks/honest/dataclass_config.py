"""Typing, a frozen dataclass for the launch, a NamedTuple, a Protocol.

tier: cpu
task: relu_scale
expect: pass
"""
# ruff: noqa

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


@dataclass(frozen=True)
class Config:
    block: int = 256
    num_warps: int = 4
    notes: list[str] = field(default_factory=list)


class Shape(NamedTuple):
    n: int


def grid_of(config: Config, shape: Shape) -> Callable[[dict[str, Any]], tuple[int, ...]]:
    return lambda meta: (triton.cdiv(shape.n, meta["BLOCK"]),)


class ModelNew(nn.Module):
    def __init__(self, config: Optional[Config] = None) -> None:
        super().__init__()
        self.config = config or Config()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.empty_like(x)
        grid = grid_of(self.config, Shape(x.numel()))
        kernel[grid](x, out, x.numel(), BLOCK=self.config.block, num_warps=self.config.num_warps)
        return out
