"""Takes from one of two tensors, as a mask of booleans says."""

import torch
import torch.nn as nn

N = 20_000_003
PROFILES = {"cpu": {"N": 1501}, "small": {"N": 200_003}, "full": {"N": 20_000_003}}


class Model(nn.Module):
    def forward(self, mask, x, y):
        return torch.where(mask, x, -y)


def get_inputs():
    return [torch.rand(N) < 0.4, torch.randn(N), torch.randn(N)]


def get_init_inputs():
    return []
