"""What comes back from one child: an arena of its own for whole outputs and for samples of its timed calls.

It is filled with NaN before a child is asked, so that what was not written does not look right. Places of samples are
drawn by the trusted side for every block and reach the child with the order.
"""

import random
from typing import Any

import torch

from core.evaluation import device_memory, host_memory
from core.evaluation.device_memory import Spec
from core.evaluation.gpu_task import Place

PLACES = 16
"""Elements of every timed call's output that are compared."""
MAX_PLACES = 256
"""From which they are drawn."""
MAX_CALLS = 64
"""Per block."""


class Outputs:
    """One child's arena; `wanted` are the outputs' types and shapes (meta tensors), empty for a child whose whole
    outputs are not looked at."""

    def __init__(self, device: str, wanted: list[torch.Tensor], whole: bool = True) -> None:
        self.device = device
        self.specs, end = device_memory.layout(wanted if whole else [])
        places = [torch.empty(PLACES, dtype=torch.int64, device="meta")] * len(wanted)
        self._places, end = device_memory.layout(places, end)
        rows = [torch.empty(MAX_CALLS, PLACES, dtype=tensor.dtype, device="meta") for tensor in wanted]
        self._rows, end = device_memory.layout(rows, end)
        self.arena: Any = host_memory.create(device, end)
        for spec in self._places:
            self.arena.tensor(spec).zero_()

    def poison(self) -> list[torch.Tensor]:
        """The whole outputs, NaN (0 for integers) everywhere."""
        return self._filled(self.specs)

    def _filled(self, specs: list[Spec]) -> list[torch.Tensor]:
        tensors = [self.arena.tensor(spec) for spec in specs]
        for tensor in tensors:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        if self.device != "cpu":
            torch.cuda.synchronize()
        return tensors

    def choose(self, places: list[torch.Tensor], rng: random.Random) -> torch.Tensor:
        """Places of the next block's samples out of `places` [MAX_PLACES] per output; their numbers."""
        chosen = torch.tensor(rng.sample(range(MAX_PLACES), PLACES), device=self.device)
        for spec, all_places in zip(self._places, places, strict=True):
            self.arena.tensor(spec).copy_(all_places[chosen])
        self._filled(self._rows)
        return chosen

    def samples(self, calls: int) -> list[torch.Tensor]:
        """[calls, PLACES] per output, as the child left them."""
        return [self.arena.tensor(spec)[:calls] for spec in self._rows]

    def whole_trees(self) -> list[Any]:
        return self._trees(self.specs)

    def sample_trees(self) -> tuple[list[Any], list[Any]]:
        """For `block` and `flushes`: where the places are, where the samples go."""
        return self._trees(self._places), self._trees(self._rows)

    @staticmethod
    def _trees(specs: list[Spec]) -> list[Any]:
        return [Place(arena="out", spec=spec).tree() for spec in specs]

    def close(self) -> None:
        self.arena.close()
