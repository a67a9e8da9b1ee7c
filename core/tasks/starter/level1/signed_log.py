"""Compresses both signs by a logarithm."""

import torch
import torch.nn as nn

N = 22_000_013
PROFILES = {"cpu": {"N": 1409}, "small": {"N": 220_013}, "full": {"N": 22_000_013}}


class Model(nn.Module):
    def forward(self, x):
        return torch.sign(x) * torch.log(1.0 + torch.abs(x))


def get_inputs():
    return [torch.randn(N) * 10.0]


def get_init_inputs():
    return []
