"""Square product in strict float32."""

import torch
import torch.nn as nn

N = 4096


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.rand(N, N) - 0.5, torch.rand(N, N) - 0.5]


def get_init_inputs():
    return []
