"""Adds a learned vector to every row."""

import torch
import torch.nn as nn

ROWS = 16381
WIDTH = 2003
PROFILES = {
    "cpu": {"ROWS": 11, "WIDTH": 97},
    "small": {"ROWS": 701, "WIDTH": 509},
    "full": {"ROWS": 16381, "WIDTH": 2003},
}


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x + self.bias


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
