"""Which numbers lie in a band; the answer is boolean."""

import torch
import torch.nn as nn

ROWS = 7001
COLUMNS = 5003
PROFILES = {
    "cpu": {"ROWS": 13, "COLUMNS": 71},
    "small": {"ROWS": 300, "COLUMNS": 999},
    "full": {"ROWS": 7001, "COLUMNS": 5003},
}


class Model(nn.Module):
    def forward(self, x, low):
        return (x > low) & (x < low + 1.0)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, 1) * 0.5 - 0.5]


def get_init_inputs():
    return []
