"""Gate and up projections of one input: silu(x A) * (x B)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 2003
WIDTH = 1027
HIDDEN = 1501
PROFILES = {
    "cpu": {"TOKENS": 18, "WIDTH": 37, "HIDDEN": 41},
    "small": {"TOKENS": 129, "WIDTH": 131, "HIDDEN": 201},
    "full": {"TOKENS": 2003, "WIDTH": 1027, "HIDDEN": 1501},
}


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH) * 2.0]


def get_init_inputs():
    return [WIDTH, HIDDEN]
