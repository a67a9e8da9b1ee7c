"""Maximum of windows of three, every second place, with an edge of one."""

import torch
import torch.nn as nn

PLANES = 5003
LENGTH = 6001
PROFILES = {
    "cpu": {"PLANES": 6, "LENGTH": 75},
    "small": {"PLANES": 301, "LENGTH": 1001},
    "full": {"PLANES": 5003, "LENGTH": 6001},
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool1d(kernel_size=3, stride=2, padding=1)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(PLANES, LENGTH)]


def get_init_inputs():
    return []
