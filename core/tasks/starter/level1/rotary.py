"""Rotary position embedding: rotates pairs of halves by given angles."""

import torch
import torch.nn as nn

TOKENS = 4001
HEADS = 33
HALF = 61
PROFILES = {
    "cpu": {"TOKENS": 5, "HEADS": 3, "HALF": 13},
    "small": {"TOKENS": 257, "HEADS": 9, "HALF": 29},
    "full": {"TOKENS": 4001, "HEADS": 33, "HALF": 61},
}


class Model(nn.Module):
    def forward(self, x, cos, sin):
        left, right = x.chunk(2, dim=-1)
        cos, sin = cos[:, None, :], sin[:, None, :]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def get_inputs():
    angles = torch.rand(TOKENS, HALF) * 6.0
    return [torch.randn(TOKENS, HEADS, 2 * HALF), torch.cos(angles), torch.sin(angles)]


def get_init_inputs():
    return []
