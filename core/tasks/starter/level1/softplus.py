"""Softplus, exact for large arguments of both signs."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4099
WIDTH = 6007
PROFILES = {
    "cpu": {"BATCH": 5, "WIDTH": 211},
    "small": {"BATCH": 301, "WIDTH": 997},
    "full": {"BATCH": 4099, "WIDTH": 6007},
}


class Model(nn.Module):
    def forward(self, x):
        return F.softplus(x)


def get_inputs():
    return [torch.randn(BATCH, WIDTH) * 4.0]


def get_init_inputs():
    return []
