"""Maps every row onto the range from zero to one."""

import torch
import torch.nn as nn

ROWS = 9011
COLUMNS = 3001
PROFILES = {
    "cpu": {"ROWS": 7, "COLUMNS": 103},
    "small": {"ROWS": 501, "COLUMNS": 701},
    "full": {"ROWS": 9011, "COLUMNS": 3001},
}


class Model(nn.Module):
    def forward(self, x):
        low = x.amin(dim=-1, keepdim=True)
        high = x.amax(dim=-1, keepdim=True)
        return (x - low) / (high - low + 1e-6)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
