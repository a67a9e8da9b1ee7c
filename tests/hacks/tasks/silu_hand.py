import torch
import torch.nn as nn

ROWS = 4096
COLUMNS = 4096
PROFILES = {"cpu": {"ROWS": 9, "COLUMNS": 70}, "small": {"ROWS": 20, "COLUMNS": 130}}


class Model(nn.Module):
    """SiLU, operator by operator."""

    def forward(self, x):
        return x * torch.sigmoid(x)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
