"""Outer product of two vectors."""

import torch
import torch.nn as nn

ROWS = 6007
COLUMNS = 5003
PROFILES = {
    "cpu": {"ROWS": 37, "COLUMNS": 53},
    "small": {"ROWS": 503, "COLUMNS": 701},
    "full": {"ROWS": 6007, "COLUMNS": 5003},
}


class Model(nn.Module):
    def forward(self, x, y):
        return torch.outer(x, y)


def get_inputs():
    return [torch.randn(ROWS), torch.randn(COLUMNS)]


def get_init_inputs():
    return []
