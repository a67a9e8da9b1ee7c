"""Matrix times vector, plus bias."""

import torch
import torch.nn as nn

ROWS = 12_007
COLUMNS = 4099
PROFILES = {
    "cpu": {"ROWS": 21, "COLUMNS": 139},
    "small": {"ROWS": 1003, "COLUMNS": 777},
    "full": {"ROWS": 12_007, "COLUMNS": 4099},
}


class Model(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(rows))

    def forward(self, matrix, vector):
        return torch.mv(matrix, vector) + self.bias


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)]


def get_init_inputs():
    return [ROWS]
