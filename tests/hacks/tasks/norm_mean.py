import torch
import torch.nn as nn

ROWS = 8192
WIDTH = 1024
PROFILES = {"cpu": {"ROWS": 8, "WIDTH": 48}, "small": {"ROWS": 12, "WIDTH": 100}}


class Model(nn.Module):
    """A structurally constant answer as long as the affine parameters keep their first values."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x).mean(dim=1)


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
