"""One score per pair of rows: x W y."""

import torch
import torch.nn as nn

PAIRS = 8009
LEFT = 257
RIGHT = 301
PROFILES = {
    "cpu": {"PAIRS": 34, "LEFT": 21, "RIGHT": 40},
    "small": {"PAIRS": 501, "LEFT": 65, "RIGHT": 77},
    "full": {"PAIRS": 8009, "LEFT": 257, "RIGHT": 301},
}


class Model(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(left, right))

    def forward(self, x, y):
        return torch.sum((x @ self.weight) * y, dim=-1)


def get_inputs():
    return [torch.randn(PAIRS, LEFT), torch.randn(PAIRS, RIGHT)]


def get_init_inputs():
    return [LEFT, RIGHT]
