"""Half-precision matrix product, accumulated in float32, plus a residual."""

import torch
import torch.nn as nn

M = 2001
N = 1539
K = 1025
PROFILES = {
    "cpu": {"M": 34, "N": 39, "K": 49},
    "small": {"M": 201, "N": 259, "K": 305},
    "full": {"M": 2001, "N": 1539, "K": 1025},
}


class Model(nn.Module):
    def forward(self, a, b, residual):
        return ((a.float() @ b.float()) + residual.float()).half()


def get_inputs():
    return [torch.randn(M, K).half(), torch.randn(K, N).half(), torch.randn(M, N).half()]


def get_init_inputs():
    return []
