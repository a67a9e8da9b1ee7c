"""Mean of the last numbers of every row, fewer at its start."""

import torch
import torch.nn as nn

ROWS = 5003
LENGTH = 4001
WINDOW = 5
PROFILES = {
    "cpu": {"ROWS": 4, "LENGTH": 83},
    "small": {"ROWS": 301, "LENGTH": 701},
    "full": {"ROWS": 5003, "LENGTH": 4001},
}


class Model(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, x):
        total = torch.cumsum(x, dim=-1)
        before = torch.cat((torch.zeros_like(total[:, : self.window]), total[:, : -self.window]), dim=-1)
        count = torch.arange(1, x.shape[-1] + 1, device=x.device).clamp(max=self.window)
        return (total - before) / count


def get_inputs():
    return [torch.randn(ROWS, LENGTH)]


def get_init_inputs():
    return [WINDOW]
