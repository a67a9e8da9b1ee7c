"""Sine and cosine of the same numbers: two outputs."""

import torch
import torch.nn as nn

N = 15_000_017
PROFILES = {"cpu": {"N": 1021}, "small": {"N": 150_011}, "full": {"N": 15_000_017}}


class Model(nn.Module):
    def forward(self, x):
        return torch.sin(x), torch.cos(x)


def get_inputs():
    return [torch.rand(N) * 6.0 - 3.0]


def get_init_inputs():
    return []
