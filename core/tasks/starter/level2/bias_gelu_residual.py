"""Adds a bias, applies the sigmoid form of GELU, adds a residual."""

import torch
import torch.nn as nn

TOKENS = 9001
WIDTH = 3003
PROFILES = {
    "cpu": {"TOKENS": 7, "WIDTH": 141},
    "small": {"TOKENS": 401, "WIDTH": 701},
    "full": {"TOKENS": 9001, "WIDTH": 3003},
}


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x, residual):
        x = x + self.bias
        return x * torch.sigmoid(1.702 * x) + residual


def get_inputs():
    return [torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
