"""Residual plus a product through a narrow middle: x + scale * (x A) B."""

import torch
import torch.nn as nn

TOKENS = 6007
WIDTH = 1027
RANK = 16
SCALE = 0.25
PROFILES = {
    "cpu": {"TOKENS": 35, "WIDTH": 50},
    "small": {"TOKENS": 401, "WIDTH": 259},
    "full": {"TOKENS": 6007, "WIDTH": 1027},
}


class Model(nn.Module):
    def __init__(self, width, rank, scale):
        super().__init__()
        self.down = nn.Parameter(torch.randn(width, rank) / rank)
        self.up = nn.Parameter(torch.randn(rank, width) / rank)
        self.scale = scale

    def forward(self, x):
        return x + self.scale * (x @ self.down @ self.up)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs():
    return [[WIDTH], {"rank": RANK, "scale": SCALE}]
