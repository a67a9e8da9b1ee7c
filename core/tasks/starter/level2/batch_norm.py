"""Batch norm with stored statistics, as at inference; parameters and statistics are state."""

import torch
import torch.nn as nn

BATCH = 33
CHANNELS = 101
PIXELS = 9001
PROFILES = {
    "cpu": {"BATCH": 2, "CHANNELS": 4, "PIXELS": 57},
    "small": {"BATCH": 5, "CHANNELS": 33, "PIXELS": 1001},
    "full": {"BATCH": 33, "CHANNELS": 101, "PIXELS": 9001},
}


class Model(nn.Module):
    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.randn(channels))
        self.register_buffer("mean", torch.randn(channels))
        self.register_buffer("variance", torch.rand(channels) + 0.5)

    def forward(self, x):
        return nn.functional.batch_norm(x, self.mean, self.variance, self.weight, self.bias)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, PIXELS)]


def get_init_inputs():
    return [CHANNELS]
