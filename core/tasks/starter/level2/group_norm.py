"""Group norm of images, with learned scale and shift per channel."""

import torch
import torch.nn as nn

BATCH = 65
CHANNELS = 96
SIDE = 63
GROUPS = 6
PROFILES = {
    "cpu": {"BATCH": 2, "CHANNELS": 12, "SIDE": 5},
    "small": {"BATCH": 9, "CHANNELS": 24, "SIDE": 17},
    "full": {"BATCH": 65, "CHANNELS": 96, "SIDE": 63},
}


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE) + 0.3]


def get_init_inputs():
    return [GROUPS, CHANNELS]
