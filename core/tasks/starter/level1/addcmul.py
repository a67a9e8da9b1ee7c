"""base + value * left * right, right being one number per column."""

import torch
import torch.nn as nn

ROWS = 9001
COLUMNS = 3001
VALUE = 0.7
PROFILES = {
    "cpu": {"ROWS": 8, "COLUMNS": 77},
    "small": {"ROWS": 401, "COLUMNS": 333},
    "full": {"ROWS": 9001, "COLUMNS": 3001},
}


class Model(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, base, left, right):
        return torch.addcmul(base, left, right, value=self.value)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)]


def get_init_inputs():
    return [VALUE]
