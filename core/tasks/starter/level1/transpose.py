"""Transposed copy of a matrix."""

import torch
import torch.nn as nn

ROWS = 5003
COLUMNS = 4093
PROFILES = {
    "cpu": {"ROWS": 45, "COLUMNS": 39},
    "small": {"ROWS": 511, "COLUMNS": 397},
    "full": {"ROWS": 5003, "COLUMNS": 4093},
}


class Model(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1).contiguous()


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
