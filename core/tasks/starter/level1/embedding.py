"""Looks up rows of a learned table by integer ids."""

import torch
import torch.nn as nn

IDS = 50_021
ENTRIES = 32_003
WIDTH = 509
PROFILES = {
    "cpu": {"IDS": 17, "ENTRIES": 41, "WIDTH": 37},
    "small": {"IDS": 1009, "ENTRIES": 503, "WIDTH": 129},
    "full": {"IDS": 50_021, "ENTRIES": 32_003, "WIDTH": 509},
}


class Model(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(entries, width))

    def forward(self, ids):
        return nn.functional.embedding(ids, self.weight)


def get_inputs():
    return [torch.randint(0, ENTRIES, (IDS,))]


def get_init_inputs():
    return [ENTRIES, WIDTH]
