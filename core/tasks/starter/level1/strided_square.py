"""Signed square of every second column: the input is a view that is not contiguous."""

import torch
import torch.nn as nn

ROWS = 4001
COLUMNS = 5001
PROFILES = {
    "cpu": {"ROWS": 6, "COLUMNS": 150},
    "small": {"ROWS": 333, "COLUMNS": 601},
    "full": {"ROWS": 4001, "COLUMNS": 5001},
}


class Model(nn.Module):
    def forward(self, x):
        return x * torch.abs(x)


def get_inputs():
    return [torch.randn(ROWS, 2 * COLUMNS)[:, ::2]]


def get_init_inputs():
    return []
