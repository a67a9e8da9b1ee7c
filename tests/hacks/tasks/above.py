import torch
import torch.nn as nn

N = 16777216
LIMIT = 0.25
PROFILES = {"cpu": {"N": 800}, "small": {"N": 3000}}


class Model(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        return x > self.limit


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return [LIMIT]
