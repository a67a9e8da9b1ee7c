import torch
import torch.nn as nn

ROWS = 8192
COLUMNS = 4096
PROFILES = {"cpu": {"ROWS": 8, "COLUMNS": 60}, "small": {"ROWS": 14, "COLUMNS": 150}}


class Model(nn.Module):
    def forward(self, x):
        return x.argmax(dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
