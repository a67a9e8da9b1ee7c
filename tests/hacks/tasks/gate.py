import torch
import torch.nn as nn

ROWS = 8192
WIDTH = 2048
PROFILES = {"cpu": {"ROWS": 8, "WIDTH": 40}, "small": {"ROWS": 12, "WIDTH": 90}}


class Model(nn.Module):
    """Parameters start at one, zero and one."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return torch.sigmoid((x * self.scale + self.shift) / self.temperature)


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
