"""Matrix product with sizes that no block divides."""

import torch
import torch.nn as nn

M = 2047
N = 1999
K = 2053
PROFILES = {
    "cpu": {"M": 37, "N": 43, "K": 51},
    "small": {"M": 255, "N": 301, "K": 333},
    "full": {"M": 2047, "N": 1999, "K": 2053},
}


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
