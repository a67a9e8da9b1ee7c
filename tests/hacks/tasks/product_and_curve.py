import torch
import torch.nn as nn

BATCH = 1024
IN = 1024
OUT = 2048
PROFILES = {"cpu": {"BATCH": 24, "IN": 16, "OUT": 40}, "small": {"BATCH": 32, "IN": 24, "OUT": 56}}


class Model(nn.Module):
    """A product and a curve written out: the product is most of the work and little of the bytes."""

    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        y = self.linear(x)
        return y * torch.sigmoid(1.702 * y) + 0.5 * torch.tanh(y)


def get_inputs():
    return [torch.randn(BATCH, IN)]


def get_init_inputs():
    return [IN, OUT]
