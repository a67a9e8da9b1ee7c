import torch
import torch.nn as nn

N = 16777216
PROFILES = {"cpu": {"N": 1000}, "small": {"N": 4000}}


class Model(nn.Module):
    """Close to the identity: 1 % of tanh is added."""

    def forward(self, x):
        return x + 0.01 * torch.tanh(x)


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
