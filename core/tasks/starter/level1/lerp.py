"""Moves from one tensor towards another by a share that is a Python number."""

import torch
import torch.nn as nn

ROWS = 3001
COLUMNS = 7001
SHARE = 0.3
PROFILES = {
    "cpu": {"ROWS": 9, "COLUMNS": 101},
    "small": {"ROWS": 300, "COLUMNS": 701},
    "full": {"ROWS": 3001, "COLUMNS": 7001},
}


class Model(nn.Module):
    def forward(self, start, end, share):
        return torch.lerp(start, end, share)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), SHARE]


def get_init_inputs():
    return []
