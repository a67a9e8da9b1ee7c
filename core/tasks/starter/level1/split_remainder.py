"""Quotient and remainder of non-negative integers by a number per column."""

import torch
import torch.nn as nn

ROWS = 6007
COLUMNS = 3001
PROFILES = {
    "cpu": {"ROWS": 10, "COLUMNS": 55},
    "small": {"ROWS": 300, "COLUMNS": 501},
    "full": {"ROWS": 6007, "COLUMNS": 3001},
}


class Model(nn.Module):
    def forward(self, x, divisor):
        return x // divisor, x % divisor


def get_inputs():
    return [torch.randint(0, 10_000, (ROWS, COLUMNS)), torch.randint(1, 50, (COLUMNS,))]


def get_init_inputs():
    return []
