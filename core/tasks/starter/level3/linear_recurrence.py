"""h[t] = a[t] * h[t-1] + b[t] along the last dimension."""

import torch
import torch.nn as nn

ROWS = 1003
LENGTH = 509
PROFILES = {
    "cpu": {"ROWS": 6, "LENGTH": 27},
    "small": {"ROWS": 101, "LENGTH": 101},
    "full": {"ROWS": 1003, "LENGTH": 509},
}


class Model(nn.Module):
    def forward(self, a, b):
        state = torch.zeros_like(b[:, 0])
        states = []
        for step in range(b.shape[1]):
            state = a[:, step] * state + b[:, step]
            states.append(state)
        return torch.stack(states, dim=1)


def get_inputs():
    return [torch.rand(ROWS, LENGTH), torch.randn(ROWS, LENGTH)]


def get_init_inputs():
    return []
