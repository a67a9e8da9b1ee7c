"""Elementwise on 1.6 G elements."""

import torch
import torch.nn as nn

ROWS = 4096
WIDTH = 393_216


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(ROWS, WIDTH) - 0.5]


def get_init_inputs():
    return []
