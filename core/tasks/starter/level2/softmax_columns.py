"""Softmax over the first dimension: the numbers of one sum lie far apart in memory."""

import torch
import torch.nn as nn

ROWS = 2003
COLUMNS = 16_001
PROFILES = {
    "cpu": {"ROWS": 61, "COLUMNS": 73},
    "small": {"ROWS": 501, "COLUMNS": 1001},
    "full": {"ROWS": 2003, "COLUMNS": 16_001},
}


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=0)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS) * 2.0]


def get_init_inputs():
    return []
