import torch
import torch.nn as nn

ROWS = 8192
COLUMNS = 2048
PROFILES = {"cpu": {"ROWS": 5, "COLUMNS": 64}, "small": {"ROWS": 9, "COLUMNS": 200}}


class Model(nn.Module):
    def forward(self, x, scale):
        return x.mean(dim=1) * scale, x.max(dim=1).values


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), 3]


def get_init_inputs():
    return []
