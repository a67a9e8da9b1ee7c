"""Takes mean and standard deviation out of every column."""

import torch
import torch.nn as nn

ROWS = 4001
COLUMNS = 6007
PROFILES = {
    "cpu": {"ROWS": 45, "COLUMNS": 47},
    "small": {"ROWS": 401, "COLUMNS": 701},
    "full": {"ROWS": 4001, "COLUMNS": 6007},
}


class Model(nn.Module):
    def forward(self, x):
        return (x - x.mean(dim=0)) / (x.std(dim=0, correction=0) + 1e-5)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS) * 2.0 + torch.randn(COLUMNS)]


def get_init_inputs():
    return []
