"""What comes back from one child: an arena of its own for outputs, buffers after a call, and samples of timed calls.

It is filled with NaN before a child is asked, so that what was not written does not look right. Places of samples are
drawn by the trusted side for every block and reach the child with the order. Outputs of a task that comes apart and is
large come part by part (`Taken`): the child holds them meanwhile, the arena has room for one part.
"""

import random
from typing import Any

import msgspec
import torch

from core.evaluation.gpu import device_memory, host_memory
from core.evaluation.gpu.device_memory import Spec
from core.evaluation.gpu.inputs import Split
from core.evaluation.gpu.places import Place

PLACES = 16
"""Elements of every timed call's output that are compared."""
MAX_PLACES = 256
"""From which they are drawn."""
MAX_CALLS = 64
"""Per block."""


class Outputs:
    """One child's arena; `wanted` are the outputs' types and shapes (meta tensors). `whole` False: whole outputs are
    not looked at. With `split` they are looked at part by part. `buffers` are those that a call changes."""

    def __init__(
        self, device: str, wanted: list[torch.Tensor], whole: bool = True, split: Split | None = None,
        buffers: dict[str, torch.Tensor] | None = None, name: str = "out",
    ) -> None:  # fmt: skip
        self.name = name
        self.device, self.split = device, split
        self._shapes = [tuple(tensor.shape) for tensor in wanted]
        held = [_like(self._part_shape(t.shape, split.each if split else 0), t) for t in wanted] if whole else []
        self.specs, end = device_memory.layout(held)
        places = [torch.empty(PLACES, dtype=torch.int64, device="meta")] * len(wanted)
        self._places, end = device_memory.layout(places, end)
        rows = [torch.empty(MAX_CALLS, PLACES, dtype=tensor.dtype, device="meta") for tensor in wanted]
        self._rows, end = device_memory.layout(rows, end)
        named = buffers or {}
        specs, end = device_memory.layout([_like(tensor.shape, tensor) for tensor in named.values()], end)
        self._buffers = dict(zip(named, specs, strict=True))
        self.arena: Any = host_memory.create(device, end)
        for spec in self._places:
            self.arena.tensor(spec).zero_()
        self._child: Any = None
        self._turns: Any = None

    def _part_shape(self, shape: Any, length: int) -> tuple[int, ...]:
        if self.split is None:
            return tuple(shape)
        return (*shape[: self.split.dim], length, *shape[self.split.dim + 1 :])

    def bind(self, child: Any, turns: Any) -> None:
        """The child that writes here, and the order in which children use the device's memory (gpu/turns.py)."""
        self._child, self._turns = child, turns

    def poison(self) -> Any:
        """The whole outputs, all garbage, to be taken by `whole_trees`: tensors, or what gives them part by part."""
        if self.split is not None:
            return Taken(self, self._child)
        return self._filled(self.specs)

    def _filled(self, specs: list[Spec]) -> list[torch.Tensor]:
        tensors = [self.arena.tensor(spec) for spec in specs]
        for tensor in tensors:
            tensor.fill_(garbage(tensor.dtype))
        if self.device != "cpu":
            torch.cuda.synchronize()
        return tensors

    def part_specs(self, start: int, stop: int) -> list[Spec]:
        """Where one range of the outputs goes."""
        assert self.split is not None
        shapes = [self._part_shape(shape, stop - start) for shape in self._shapes]
        return [
            msgspec.structs.replace(spec, shape=shape, stride=torch.empty(shape, device="meta").stride())
            for spec, shape in zip(self.specs, shapes, strict=True)
        ]

    def choose(self, places: list[torch.Tensor], rng: random.Random) -> torch.Tensor:
        """Make the child ready for a block: its turn with the device's memory, and places of the block's samples out of
        `places` [MAX_PLACES] per output; their numbers."""
        if self._turns is not None:
            self._turns.take(self._child)
        chosen = torch.tensor(rng.sample(range(MAX_PLACES), PLACES), device=self.device)
        for spec, all_places in zip(self._places, places, strict=True):
            self.arena.tensor(spec).copy_(all_places[chosen])
        for tensor, shape in zip(self._filled(self._rows), self._shapes, strict=True):
            if 0 in shape:  # nothing of it is sampled, nothing is wanted
                tensor.zero_()
        return chosen

    def samples(self, calls: int) -> list[torch.Tensor]:
        """[calls, PLACES] per output, as the child left them."""
        return [self.arena.tensor(spec)[:calls] for spec in self._rows]

    def buffers(self) -> list[torch.Tensor]:
        """As the child left them, in order."""
        return [self.arena.tensor(spec) for spec in self._buffers.values()]

    def whole_trees(self) -> list[Any]:
        """For `take`; empty for outputs that the child is to hold."""
        return [] if self.split is not None else self._trees(self.specs)

    def sample_trees(self) -> tuple[list[Any], list[Any]]:
        """For `block` and `flushes`: where the places are, where the samples go."""
        return self._trees(self._places), self._trees(self._rows)

    def buffer_trees(self) -> dict[str, Any]:
        """For `buffers`."""
        self._filled(list(self._buffers.values()))
        return {name: Place(arena=self.name, spec=spec).tree() for name, spec in self._buffers.items()}

    def _trees(self, specs: list[Spec]) -> list[Any]:
        return [Place(arena=self.name, spec=spec).tree() for spec in specs]

    def close(self) -> None:
        self.arena.close()


class Taken:
    """An output that a child holds, taken part by part; `done` lets it go."""

    def __init__(self, outputs: Outputs, child: Any) -> None:
        self._outputs, self._child = outputs, child

    def __len__(self) -> int:
        return len(self._outputs.specs)

    def part(self, start: int, stop: int) -> list[torch.Tensor]:
        """One range of every output; the next one overwrites it. Raises ChildFailed."""
        specs = self._outputs.part_specs(start, stop)
        tensors = self._outputs._filled(specs)
        assert self._outputs.split is not None
        self._child.ask("part", self._outputs._trees(specs), self._outputs.split.dim, start, stop)
        return tensors

    def done(self) -> None:
        if self._child.running:
            self._child.ask("drop")


def _like(shape: Any, tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=tensor.dtype, device="meta")


def garbage(dtype: torch.dtype) -> Any:
    """What no right output is likely to hold."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max - 7
