"""Clamps integers between two bounds."""

import torch
import torch.nn as nn

N = 40_000_003
LOW = -20
HIGH = 35
PROFILES = {"cpu": {"N": 1111}, "small": {"N": 400_009}, "full": {"N": 40_000_003}}


class Model(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        self.low = low
        self.high = high

    def forward(self, x):
        return torch.clamp(x, self.low, self.high)


def get_inputs():
    return [torch.randint(-100, 100, (N,), dtype=torch.int32)]


def get_init_inputs():
    return [LOW, HIGH]
