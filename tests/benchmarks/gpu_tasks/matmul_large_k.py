"""A product with a long inner dimension."""

import torch
import torch.nn as nn

M = 256
N = 256
K = 131_072


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.rand(M, K) - 0.5, torch.rand(K, N) - 0.5]


def get_init_inputs():
    return []
