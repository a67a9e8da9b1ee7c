import torch
import torch.nn as nn

N = 16777216
PROFILES = {"cpu": {"N": 700}, "small": {"N": 3000}}


class Model(nn.Module):
    """Outputs of about a thousandth: an absolute tolerance of 1e-2 would take zeros."""

    def forward(self, x):
        return torch.tanh(x) * 1e-3


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
