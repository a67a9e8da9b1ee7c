"""Products of a batch."""

import torch
import torch.nn as nn

BATCH = 128
M = 128
K = 256
N = 512


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs():
    return [torch.rand(BATCH, M, K) - 0.5, torch.rand(BATCH, K, N) - 0.5]


def get_init_inputs():
    return []
