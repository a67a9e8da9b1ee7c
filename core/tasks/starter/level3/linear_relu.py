"""Linear layer with bias, then ReLU."""

import torch
import torch.nn as nn

BATCH = 4001
WIDTH_IN = 1027
WIDTH_OUT = 2050
PROFILES = {
    "cpu": {"BATCH": 35, "WIDTH_IN": 45, "WIDTH_OUT": 50},
    "small": {"BATCH": 257, "WIDTH_IN": 259, "WIDTH_OUT": 300},
    "full": {"BATCH": 4001, "WIDTH_IN": 1027, "WIDTH_OUT": 2050},
}


class Model(nn.Module):
    def __init__(self, width_in, width_out):
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(BATCH, WIDTH_IN)]


def get_init_inputs():
    return [WIDTH_IN, WIDTH_OUT]
