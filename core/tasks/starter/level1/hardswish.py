"""Hard swish of a batch of images."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 33
CHANNELS = 67
SIDE = 113
PROFILES = {
    "cpu": {"BATCH": 2, "CHANNELS": 3, "SIDE": 13},
    "small": {"BATCH": 5, "CHANNELS": 17, "SIDE": 57},
    "full": {"BATCH": 33, "CHANNELS": 67, "SIDE": 113},
}


class Model(nn.Module):
    def forward(self, x):
        return F.hardswish(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE) * 3.0]


def get_init_inputs():
    return []
