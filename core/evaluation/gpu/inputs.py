"""One set of inputs as the trusted side knows it: private masters, or seals of what lies in the shared arena.

A `Held` set has copies of its own in this process. A `Sealed` set has none, so that tensors of gigabytes stand once on
the device: when the set was written to the arena, a secret 64-bit sum of every part was taken from the private tensors.
Whoever wants a part gets a private copy of the arena's bytes, and `ChangedInputs` unless its sum is the noted one. So a
candidate that writes to its inputs is found, and a reference never reads memory that a candidate may be writing to.

A tensor's bytes are those of its extent, gaps included: expanded, overlapping and strided tensors keep their layout.
"""

import math
import random
from typing import Any

import msgspec
import torch

from core.evaluation import trees
from core.evaluation.aten_costs import tensors_in
from core.evaluation.values import extent

ROW = 4096
"""Words that one row of weights covers."""
ROWS = 2048
"""Rows that are summed at once: 64 MiB of 64-bit products."""


class ChangedInputs(Exception):
    """What lies in the arena is not what was put there: somebody wrote to input `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"forward changed its input {number}")
        self.number = number


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """How a task's tensors come apart: along dimension `dim`, `each` indices at a time."""

    dim: int
    size: int
    each: int
    sliced: tuple[bool, ...]
    """Per input tensor: whether it is cut (else every part has it whole)."""

    def ranges(self) -> list[tuple[int, int]]:
        return [(start, min(self.size, start + self.each)) for start in range(0, self.size, self.each)]

    def cut(self, inputs: Any, start: int, stop: int) -> Any:
        """The inputs of one range, as views."""
        marks = iter(self.sliced)
        return trees.mapped(inputs, lambda x: x.narrow(self.dim, start, stop - start) if next(marks) else x)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's extent in its storage, [elements]; shares its memory."""
    return tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in new memory of the same layout, its gaps too."""
    elements = flat(tensor).clone()
    return elements.as_strided(tensor.shape, tensor.stride(), 0)


class Sums:
    """Secret sums of tensors' bytes. One changed element always changes the sum (weights are odd), several do but for
    a chance of 2**-64 or so for who does not know the weights."""

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(random.SystemRandom().getrandbits(62))
        low, high = -(2**62), 2**62
        columns, rows = (
            torch.randint(low, high, (count,), generator=generator, dtype=torch.int64) * 2 + 1 for count in (ROW, ROWS)
        )
        self._columns, self._rows = columns.to(device), rows.to(device)
        self._step = random.SystemRandom().getrandbits(60) * 2 + 1

    def of(self, tensor: torch.Tensor) -> int:
        """The sum of a contiguous tensor that starts its own storage."""
        data = tensor.flatten()
        data = (torch.view_as_real(data).flatten() if data.is_complex() else data).view(torch.uint8)
        words, tail = data[: data.numel() // 4 * 4].view(torch.int32), data[data.numel() // 4 * 4 :]
        total = torch.zeros((), dtype=torch.int64, device=data.device)
        for start in range(0, words.numel(), ROW * ROWS):
            total = total * self._step + self._some(words[start : start + ROW * ROWS])
        if tail.numel():
            total = total * self._step + (tail.long() * self._columns[: tail.numel()]).sum()
        return int(total)

    def _some(self, words: torch.Tensor) -> torch.Tensor:
        whole = words.numel() // ROW
        body, rest = words[: whole * ROW].view(whole, ROW), words[whole * ROW :]
        found = ((body.long() * self._columns).sum(1) * self._rows[:whole]).sum()
        if rest.numel():
            found = found * self._step + (rest.long() * self._columns[: rest.numel()]).sum()
        return found


class Held:
    """A set with private copies: [args, kwargs]."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def whole(self) -> Any:
        return self.tree

    def part(self, split: Split, start: int, stop: int) -> Any:
        return split.cut(self.tree, start, stop)


class Sealed:
    """A set that lies in the arena alone, in parts of `split`, or in one where that is None."""

    def __init__(self, shared: Any, split: Split | None, sums: Sums) -> None:
        self._shared, self._split, self._sums = shared, split, sums
        self._noted: dict[tuple[int, int, int], int] = {}

    def note(self, number: int, private: torch.Tensor) -> None:
        """What input `number` holds from now on, from a private tensor of the same layout."""
        for start, stop in self._ranges(number):
            self._noted[number, start, stop] = self._sums.of(self._piece(private, start, stop))

    def _ranges(self, number: int) -> list[tuple[int, int]]:
        return self._split.ranges() if self._split is not None and self._split.sliced[number] else [(0, 0)]

    def _piece(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """A contiguous private copy; (0, 0) is everything, in its extent."""
        if stop == 0:
            return flat(tensor).clone()
        assert self._split is not None
        return tensor.narrow(self._split.dim, start, stop - start).clone(memory_format=torch.contiguous_format)

    def _checked(self, number: int, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        private = self._piece(tensor, start, stop)
        if self._sums.of(private) != self._noted[number, start, stop]:
            raise ChangedInputs(number)
        return private

    def part(self, split: Split, start: int, stop: int) -> Any:
        """One range of the inputs, in private memory; raises ChangedInputs."""
        assert split == self._split
        numbers = iter(range(len(split.sliced)))

        def piece(tensor: torch.Tensor) -> torch.Tensor:
            number = next(numbers)
            return self._checked(number, tensor, start, stop) if split.sliced[number] else self._all(number, tensor)

        return trees.mapped(self._shared, piece)

    def whole(self) -> Any:
        """Everything, in private memory; raises ChangedInputs."""
        numbers = iter(range(len(tensors_in(self._shared))))
        return trees.mapped(self._shared, lambda tensor: self._all(next(numbers), tensor))

    def _all(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        private = copied(tensor)
        for start, stop in self._ranges(number):
            if self._sums.of(self._piece(private, start, stop)) != self._noted[number, start, stop]:
                raise ChangedInputs(number)
        return private


Inputs = Held | Sealed


def as_inputs(value: Any) -> Inputs:
    """A set; a plain [args, kwargs] is held."""
    return value if isinstance(value, (Held, Sealed)) else Held(value)


def changed(inputs: Any) -> Any:
    """The same values at another scale, in place where that keeps their meaning: not masks, labels or indices, never
    larger, so that what lay between 0 and 1 or -1 and 1 does so still."""
    scale = 0.5 + 0.45 * random.SystemRandom().random()

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.numel() <= 8 or trees.overlaps(tensor):
            return tensor
        seen = flat(tensor)[: 1 << 16]
        if not bool(torch.isfinite(seen).all()) or torch.equal(seen, seen.round()) or torch.unique(seen).numel() <= 4:
            return tensor
        flat(tensor).mul_(scale)
        return tensor

    return trees.mapped(inputs, change)


def each_within(size: int, largest: int, part_elements: int) -> int:
    """Indices of a dimension of `size` per part, so that the largest tensor's part has at most `part_elements`."""
    return max(1, math.floor(size * part_elements / max(1, largest)))
