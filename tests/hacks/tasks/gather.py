import torch
import torch.nn as nn

ROWS = 1048576
WIDTH = 64
TABLE = 50000
PROFILES = {"cpu": {"ROWS": 20, "WIDTH": 16, "TABLE": 11}, "small": {"ROWS": 50, "WIDTH": 40, "TABLE": 30}}


class Model(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, index):
        return self.table(index)


def get_inputs():
    return [torch.randint(0, TABLE, (ROWS,))]


def get_init_inputs():
    return [TABLE, WIDTH]
