import torch
import torch.nn as nn

ROWS = 4096
HALF = 2048
PROFILES = {"cpu": {"ROWS": 7, "HALF": 25}, "small": {"ROWS": 12, "HALF": 60}}


class Model(nn.Module):
    def forward(self, x):
        return x[:, 1::2] * 3.0


def get_inputs():
    return [torch.randn(ROWS, 2 * HALF)]


def get_init_inputs():
    return []
