"""Linear layer whose weights are 8-bit integers with a scale per output."""

import torch
import torch.nn as nn

BATCH = 1001
WIDTH_IN = 2051
WIDTH_OUT = 1025
PROFILES = {
    "cpu": {"BATCH": 19, "WIDTH_IN": 45, "WIDTH_OUT": 37},
    "small": {"BATCH": 129, "WIDTH_IN": 257, "WIDTH_OUT": 201},
    "full": {"BATCH": 1001, "WIDTH_IN": 2051, "WIDTH_OUT": 1025},
}


class Model(nn.Module):
    weight: torch.Tensor

    def __init__(self, width_in, width_out):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (width_out, width_in), dtype=torch.int8))
        self.scale = nn.Parameter(torch.rand(width_out) / 127.0)

    def forward(self, x):
        return (x @ self.weight.to(x.dtype).t()) * self.scale


def get_inputs():
    return [torch.randn(BATCH, WIDTH_IN)]


def get_init_inputs():
    return [WIDTH_IN, WIDTH_OUT]
