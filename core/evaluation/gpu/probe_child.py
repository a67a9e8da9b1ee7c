"""The probe of a GPU, as a program: known results computed in a fresh process, answered as numbers.

It is not imported: its text is given to a GPU child as if it were a candidate (`core.evaluation.gpu.probe`, warm), or
it is run as a script in a new interpreter (`python gpu/probe_child.py cuda:0 SALT MB`, cold). So it imports
torch alone. The prober knows from SALT what must come out and does not trust a word of "right" from here.
"""

import json
import sys

import torch

SIZE = 512
STEP = 2654435761


def memory(device: str, salt: int, megabytes: int) -> list[int]:
    """[MB, elements that are not what was written, their sum as 64 bits]; less memory where there is not so much."""
    while True:
        count = megabytes * 2**20 // 8
        try:
            held = torch.arange(count, dtype=torch.int64, device=device)
            held.mul_(STEP).add_(salt)
            total = int(held.sum())
            held.sub_(salt)
            held.sub_(torch.arange(count, dtype=torch.int64, device=device).mul_(STEP))
            return [megabytes, int(torch.count_nonzero(held)), total]
        except torch.OutOfMemoryError:
            held = None
            if megabytes <= 1:
                raise
            megabytes //= 2


def product(device: str, salt: int) -> int:
    """Sum of a product of small whole numbers with whole weights: exact on matrix units, in any order of additions."""
    rows = torch.arange(SIZE, dtype=torch.int64, device=device)
    left = (rows[:, None] * 3 + rows[None, :] * 5 + salt) % 7 - 3
    right = (rows[:, None] * 11 + rows[None, :] * 2 + salt) % 5 - 2
    kind = torch.float32 if device == "cpu" else torch.float16
    found = (left.to(kind) @ right.to(kind)).to(torch.int64)
    return int((found * (rows[:, None] % 13) * (rows[None, :] % 17)).sum())


class ModelNew(torch.nn.Module):
    """What a GPU child constructs and calls."""

    def __init__(self, device: str, salt: int, megabytes: int) -> None:
        super().__init__()
        self.arguments = (device, salt, megabytes)

    def forward(self) -> dict:
        device, salt, megabytes = self.arguments
        return {"memory": memory(device, salt, megabytes), "product": product(device, salt)}


if __name__ == "__main__":
    print(json.dumps(ModelNew(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))()))
