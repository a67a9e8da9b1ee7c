import torch
import torch.nn as nn

BATCH = 64
CHANNELS = 256
PROFILES = {"cpu": {"BATCH": 16, "CHANNELS": 6}, "small": {"BATCH": 24, "CHANNELS": 20}}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(x))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS)]


def get_init_inputs():
    return [CHANNELS]
