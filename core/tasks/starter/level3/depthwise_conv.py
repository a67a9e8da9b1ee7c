"""Causal depthwise convolution along time with a learned filter per channel."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 17
CHANNELS = 513
LENGTH = 2003
TAPS = 4
PROFILES = {
    "cpu": {"BATCH": 2, "CHANNELS": 3, "LENGTH": 75},
    "small": {"BATCH": 3, "CHANNELS": 65, "LENGTH": 501},
    "full": {"BATCH": 17, "CHANNELS": 513, "LENGTH": 2003},
}


class Model(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.taps = taps
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels)

    def forward(self, x):
        return self.conv(F.pad(x, (self.taps - 1, 0)))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs():
    return [CHANNELS, TAPS]
