import torch
import torch.nn as nn

BATCH = 32
CHANNELS = 32
OUT = 64
SIZE = 64
PROFILES = {
    "cpu": {"BATCH": 2, "CHANNELS": 3, "OUT": 4, "SIZE": 7},
    "small": {"BATCH": 2, "CHANNELS": 4, "OUT": 6, "SIZE": 10},
}


class Model(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, OUT]
