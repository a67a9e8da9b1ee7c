"""Logarithm of the softmax, over a dimension in the middle."""

import torch
import torch.nn as nn

BATCH = 501
CLASSES = 1003
PIXELS = 67
PROFILES = {
    "cpu": {"BATCH": 3, "CLASSES": 29, "PIXELS": 5},
    "small": {"BATCH": 17, "CLASSES": 101, "PIXELS": 33},
    "full": {"BATCH": 501, "CLASSES": 1003, "PIXELS": 67},
}


class Model(nn.Module):
    def forward(self, x):
        return torch.log_softmax(x, dim=1)


def get_inputs():
    return [torch.randn(BATCH, CLASSES, PIXELS) * 2.0]


def get_init_inputs():
    return []
