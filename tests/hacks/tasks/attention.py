import torch
import torch.nn as nn

HEADS = 16
TOKENS = 1024
WIDTH = 64
PROFILES = {"cpu": {"HEADS": 2, "TOKENS": 12, "WIDTH": 16}, "small": {"HEADS": 3, "TOKENS": 20, "WIDTH": 32}}


class Model(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1) @ v


def get_inputs():
    return [
        torch.randn(1, HEADS, TOKENS, WIDTH),
        torch.randn(1, HEADS, TOKENS, WIDTH),
        torch.randn(1, HEADS, TOKENS, WIDTH),
    ]


def get_init_inputs():
    return []
