"""Leaky ReLU with a learned slope per channel."""

import torch
import torch.nn as nn

BATCH = 17
CHANNELS = 129
LENGTH = 12007
PROFILES = {
    "cpu": {"BATCH": 3, "CHANNELS": 4, "LENGTH": 61},
    "small": {"BATCH": 5, "CHANNELS": 31, "LENGTH": 1009},
    "full": {"BATCH": 17, "CHANNELS": 129, "LENGTH": 12007},
}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.slope = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        return nn.functional.prelu(x, self.slope)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs():
    return [CHANNELS]
