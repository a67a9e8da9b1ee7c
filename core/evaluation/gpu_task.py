"""One task on one GPU: its reference, its arena of inputs, and a clean child that runs the eager baseline.

The arena holds input sets and parameters, nothing else, and is mapped by the candidate's child and the baseline's; what
right outputs look like is never in it. Private masters of the inputs stay in this process. `renew` draws new secret
values for a candidate. Two sets rotate in timed calls, with different values; where one set is larger than
`HUGE_BYTES`, the second one is the same memory some elements further on, so that 1.6 G elements are held once.
"""

import os
import random
from typing import Any

import msgspec
import torch

from core.evaluation import device_memory, draws, host_memory, trees
from core.evaluation.aten_costs import tensors_in
from core.evaluation.device_memory import Spec
from core.evaluation.device_reference import DeviceReference
from core.tasks.format import TaskError

HUGE_BYTES = 2**30
SETS = 2


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor in a named arena."""

    arena: str
    spec: Spec

    def tree(self) -> list[Any]:
        spec = self.spec
        return ["tensor", self.arena, spec.offset, spec.dtype, list(spec.shape), list(spec.stride)]


def encode(value: Any, places: dict[int, Place]) -> Any:
    """A nested value for the wire; `places` by id() of its tensors."""
    if isinstance(value, torch.Tensor):
        return places[id(value)].tree()
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [encode(part, places) for part in value]]
    if isinstance(value, dict):
        return ["dict", {str(key): encode(part, places) for key, part in value.items()}]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    raise TaskError(f"inputs hold a {type(value).__name__}, which does not travel to a candidate")


class GpuTask:
    """A task's tensors on the device, between candidates."""

    def __init__(self, source: str, name: str, profile: str, device: str, part_elements: int) -> None:
        self.device, self.source, self.name = device, source, name
        self.reference = DeviceReference(source, name, profile, device, part_elements)
        if tensors_in(self.reference.init):
            raise TaskError(f"task {name}: constructor arguments that are tensors are not for the GPU tier yet")
        inputs = self.reference.inputs(_seed())
        self.reference.learn(inputs)
        tensors = tensors_in(inputs)
        self.input_bytes = sum(tensor.nbytes for tensor in tensors)
        self.output_bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.reference.outputs)
        state = self.reference.built.base
        floats = bool(tensors) and all(t.is_floating_point() and t.is_contiguous() for t in tensors)
        self.huge = self.input_bytes > HUGE_BYTES and floats
        self._shift = 512 * random.SystemRandom().randrange(1, 64) if self.huge else 0
        self._specs: list[list[Spec]] = []
        end = 0
        for number in range(SETS):
            if self.huge and number:
                moved = [msgspec.structs.replace(spec, offset=spec.offset + self._shift) for spec in self._specs[0]]
                self._specs.append(moved)
                continue
            if self.huge:
                padded, end = _padded(tensors, 64 * 512)
                self._specs.append(padded)
            else:
                specs, end = device_memory.layout(tensors, end)
                self._specs.append(specs)
        held = list(state.values())
        self._state_specs, end = device_memory.layout(held, end)
        self._names = list(state)
        self.arena = host_memory.create(device, end)
        self.sets: list[Any] = []
        """Private masters: [args, kwargs] of every set."""
        self._shared = [[self.arena.tensor(spec) for spec in specs] for specs in self._specs]
        self._shared_state = [self.arena.tensor(spec) for spec in self._state_specs]
        del inputs, tensors
        self.renew()

    def renew(self) -> None:
        """New secret values in all sets and parameters; the reference has them too."""
        generator = torch.Generator().manual_seed(_seed())
        base = {name: tensor.cpu() for name, tensor in self.reference.built.base.items()}
        state = draws.perturbed(base, self.reference.built.parameters, generator)
        state = {name: tensor.to(self.device) for name, tensor in state.items()}
        self.reference.load(state)
        for held, tensor in zip(self._shared_state, state.values(), strict=True):
            held.copy_(tensor)
        self._state = state
        self.sets = []
        for number in range(SETS):
            if self.huge and number:
                continue
            made = self.reference.inputs(_seed())
            self.sets.append(self._changed(made) if number else made)
        self.refill()

    def _changed(self, inputs: Any) -> Any:
        scale = 0.6 + 0.8 * random.SystemRandom().random()

        def change(tensor: torch.Tensor) -> torch.Tensor:
            wide = tensor.is_floating_point() and tensor.numel() > 8
            return tensor.mul_(scale) if wide and not trees.overlaps(tensor) else tensor

        return trees.mapped(inputs, change)

    def refill(self) -> None:
        """The masters' bytes into the arena: what a child wrote there is gone."""
        for number, inputs in enumerate(self.sets):
            for held, tensor in zip(self._shared[number], tensors_in(inputs), strict=True):
                held.copy_(tensor)
        if self.huge:  # behind a tensor's end: what the shifted set reads there
            for spec in self._specs[0]:
                tail = msgspec.structs.replace(
                    spec, offset=spec.offset + spec.nbytes, shape=(self._shift // 4,), stride=(1,), dtype="float32"
                )
                self.arena.tensor(tail).normal_()
        self.idle()

    def values(self, number: int) -> Any:
        """[args, kwargs] of a set as a child finds them."""
        if number < len(self.sets):
            return self.sets[number]
        shared = iter(self._shared[number])
        return trees.mapped(self.sets[0], lambda _: next(shared))

    def intact(self) -> bool:
        """Whether the arena's inputs are still the masters'."""
        return all(
            torch.equal(held, tensor) or bool(tensor.isnan().any())
            for number, inputs in enumerate(self.sets)
            for held, tensor in zip(self._shared[number], tensors_in(inputs), strict=True)
        )

    def scale_in_place(self) -> None:
        """Other values in the first set's memory: what was remembered by address is wrong now."""
        self.sets[0] = self._changed(self.sets[0])
        self.refill()

    def input_trees(self) -> list[Any]:
        """What `inputs` of a child takes."""
        found = []
        for number, specs in enumerate(self._specs):
            value = self.values(number)
            places = {id(t): Place(arena="inputs", spec=spec) for t, spec in zip(tensors_in(value), specs, strict=True)}
            found.append([encode(list(value[0]), places), encode(value[1], places)])
        return found

    def state_trees(self) -> dict[str, Any]:
        return {
            name: Place(arena="inputs", spec=spec).tree()
            for name, spec in zip(self._names, self._state_specs, strict=True)
        }

    def idle(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def close(self) -> None:
        self.sets, self._shared, self._shared_state = [], [], []
        self.arena.close()


def _padded(tensors: list[torch.Tensor], pad: int) -> tuple[list[Spec], int]:
    """As `layout`, with `pad` bytes behind every tensor."""
    specs: list[Spec] = []
    end = 0
    for tensor in tensors:
        found, end = device_memory.layout([tensor], end)
        specs += found
        end += pad
    return specs, end


def _seed() -> int:
    return int.from_bytes(os.urandom(6), "little")
