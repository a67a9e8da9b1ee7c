import torch
import torch.nn as nn

ROWS = 8192
COLUMNS = 4096
PROFILES = {"cpu": {"ROWS": 6, "COLUMNS": 64}, "small": {"ROWS": 10, "COLUMNS": 250}}


class Model(nn.Module):
    """GELU by hand, then softmax: many passes over memory."""

    def forward(self, x):
        y = 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
        return torch.softmax(y, dim=1) * y


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
