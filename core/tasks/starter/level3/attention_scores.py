"""Scores of queries and keys with a learned bias per distance, clamped at its ends."""

import torch
import torch.nn as nn

QUERIES = 2003
KEYS = 2011
WIDTH = 128
REACH = 31
PROFILES = {
    "cpu": {"QUERIES": 33, "KEYS": 45, "WIDTH": 16},
    "small": {"QUERIES": 201, "KEYS": 257, "WIDTH": 64},
    "full": {"QUERIES": 2003, "KEYS": 2011, "WIDTH": 128},
}


class Model(nn.Module):
    def __init__(self, reach):
        super().__init__()
        self.reach = reach
        self.bias = nn.Parameter(torch.randn(2 * reach + 1))

    def forward(self, q, k):
        rows = torch.arange(q.shape[0], device=q.device)
        columns = torch.arange(k.shape[0], device=q.device)
        distance = (columns[None, :] - rows[:, None]).clamp(-self.reach, self.reach)
        return q @ k.t() / q.shape[1] ** 0.5 + self.bias[distance + self.reach]


def get_inputs():
    return [torch.randn(QUERIES, WIDTH), torch.randn(KEYS, WIDTH)]


def get_init_inputs():
    return [REACH]
