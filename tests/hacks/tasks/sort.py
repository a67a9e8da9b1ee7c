import torch
import torch.nn as nn

ROWS = 16384
COLUMNS = 1024
PROFILES = {"cpu": {"ROWS": 4, "COLUMNS": 32}, "small": {"ROWS": 6, "COLUMNS": 64}}


class Model(nn.Module):
    def forward(self, x):
        return torch.sort(x, dim=1).values


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
