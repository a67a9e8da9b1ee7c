"""Mixes the bits of 32-bit integers by shifts and exclusive or."""

import torch
import torch.nn as nn

N = 30_000_007
PROFILES = {"cpu": {"N": 1203}, "small": {"N": 300_007}, "full": {"N": 30_000_007}}


class Model(nn.Module):
    def forward(self, x):
        x = x ^ (x << 5)
        x = x ^ (x >> 7)
        return x & 0xFFFFF


def get_inputs():
    return [torch.randint(0, 2**31 - 1, (N,), dtype=torch.int32)]


def get_init_inputs():
    return []
