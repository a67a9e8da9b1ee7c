"""ELU with its slope given to the constructor."""

import torch
import torch.nn as nn

N = 25_000_019
ALPHA = 1.5
PROFILES = {"cpu": {"N": 777}, "small": {"N": 300_007}, "full": {"N": 25_000_019}}


class Model(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.activation = nn.ELU(alpha)

    def forward(self, x):
        return self.activation(x)


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return [ALPHA]
