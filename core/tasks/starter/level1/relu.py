"""ReLU of a matrix whose row length is odd."""

import torch
import torch.nn as nn

ROWS = 8191
COLUMNS = 4001
PROFILES = {
    "cpu": {"ROWS": 7, "COLUMNS": 133},
    "small": {"ROWS": 511, "COLUMNS": 1001},
    "full": {"ROWS": 8191, "COLUMNS": 4001},
}


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
