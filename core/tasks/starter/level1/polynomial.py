"""A cubic polynomial with learned coefficients."""

import torch
import torch.nn as nn

N = 33_000_007
PROFILES = {"cpu": {"N": 901}, "small": {"N": 300_001}, "full": {"N": 33_000_007}}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.coefficients = nn.Parameter(torch.randn(4))

    def forward(self, x):
        c = self.coefficients
        return ((c[3] * x + c[2]) * x + c[1]) * x + c[0]


def get_inputs():
    return [torch.rand(N) * 2.0 - 1.0]


def get_init_inputs():
    return []
