"""Matrix products of a batch; the second operand is stored transposed."""

import torch
import torch.nn as nn

BATCH = 65
M = 511
N = 257
K = 301
PROFILES = {
    "cpu": {"BATCH": 3, "M": 20, "N": 25, "K": 35},
    "small": {"BATCH": 9, "M": 101, "N": 65, "K": 77},
    "full": {"BATCH": 65, "M": 511, "N": 257, "K": 301},
}


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b.transpose(1, 2))


def get_inputs():
    return [torch.randn(BATCH, M, K), torch.randn(BATCH, N, K)]


def get_init_inputs():
    return []
