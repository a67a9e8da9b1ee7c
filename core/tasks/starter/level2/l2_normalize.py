"""Divides every row by its length."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 30_011
WIDTH = 1025
PROFILES = {
    "cpu": {"ROWS": 9, "WIDTH": 65},
    "small": {"ROWS": 1003, "WIDTH": 257},
    "full": {"ROWS": 30_011, "WIDTH": 1025},
}


class Model(nn.Module):
    def forward(self, x):
        return F.normalize(x, p=2.0, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return []
