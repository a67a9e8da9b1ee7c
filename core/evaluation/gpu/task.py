"""One task on one GPU: its reference, and the arena with its input sets, parameters and constructor's tensors.

The arena holds nothing else and is mapped by the candidate's child and the baseline's; what right outputs look like is
never in it. `renew` draws new secret values for a candidate. Two sets rotate in timed calls, with different values.
Where one set is larger than `HUGE_BYTES`, no master of it is kept (gpu.inputs.Sealed), and the second set is the same
memory some elements further on, as far as its tensors are floating point: 1.6 G elements are held once.

Memory while a huge task is prepared: the arena, and what get_inputs() needs itself or one tensor and its padded copy.
Afterwards the arena alone.
"""

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from core.evaluation import draws, trees
from core.evaluation.aten_costs import tensors_in
from core.evaluation.gpu import device_memory, host_memory
from core.evaluation.gpu import inputs as gpu_inputs
from core.evaluation.gpu.device_memory import Spec
from core.evaluation.gpu.device_reference import PART_ELEMENTS, Aside, DeviceReference
from core.evaluation.gpu.inputs import Held, Inputs, Sealed, Sums
from core.evaluation.gpu.places import Place, encode, padded
from core.tasks.format import TaskError

HUGE_BYTES = 2**30
LEAN_BYTES = 2**31
"""Inputs and outputs beyond this: children give memory back when it is not their turn, outputs are taken in parts."""
SETS = 2
PAD = 64 * 512
"""Bytes behind a huge tensor's end: what the shifted set reads there."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory of the task itself, in bytes."""

    inputs: int
    outputs: int
    state: int

    @property
    def total(self) -> int:
        return self.inputs + self.outputs + self.state

    def describe(self) -> str:
        parts = f"inputs {self.inputs / 1e9:.1f}, parameters {self.state / 1e9:.1f}, outputs {self.outputs / 1e9:.1f}"
        return f"the task itself needs {self.total / 1e9:.1f} GB ({parts})"


class GpuTask:
    """A task's tensors on the device, between candidates."""

    def __init__(
        self, source: str, name: str, profile: str, device: str, part_elements: int = PART_ELEMENTS,
        sizes: dict[str, int] | None = None, huge_bytes: int = HUGE_BYTES, lean_bytes: int = LEAN_BYTES,
        arena_name: str = "inputs", aside: Aside = contextlib.nullcontext,
    ) -> None:  # fmt: skip
        """`aside` is entered while the CPU alone has work, until the task is made."""
        self._aside = aside
        self.arena_name = arena_name
        self.device, self.source, self.name = device, source, name
        self.reference = DeviceReference(source, name, profile, device, part_elements, sizes, aside)
        inputs = self.reference.inputs(_seed())
        self.reference.learn(inputs)
        tensors = tensors_in(inputs)
        state = {**self.reference.built.base, **_attributes(self.reference.built.plain)}
        self.needs = Needs(
            inputs=sum(gpu_inputs.flat(t).numel() * t.element_size() for t in tensors),
            outputs=sum(tensor.numel() * tensor.element_size() for tensor in self.reference.outputs),
            state=sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
        )
        # What a module changes is compared with its masters, and put back from copies.
        self.huge = self.needs.inputs > huge_bytes and not self.reference.mutated
        self.lean = self.needs.inputs + self.needs.outputs > lean_bytes
        self._shifts = [self._shift_of(tensor) for tensor in tensors]
        self._template = trees.mapped(
            inputs, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        )
        self._specs, end = self._lay_out(tensors)
        self._state_specs, end = device_memory.layout(
            [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in state.values()], end
        )
        init = tensors_in(self.reference.init)
        self._init_specs, end = device_memory.layout(init, end)
        self._names = list(state)
        del inputs, tensors
        self.give_back()
        self.arena = host_memory.create(device, end)
        try:
            self._fill(init)
        except BaseException:  # there may be no room for the masters; the arena must not stay for ever
            self.close()
            raise
        finally:
            self._aside = contextlib.nullcontext

    @contextlib.contextmanager
    def yielding(self, aside: Aside) -> Iterator[None]:
        """Enter `aside` (gpu.lease.Held.aside) while the CPU alone has work: parameters are drawn there."""
        self._aside = aside
        try:
            yield
        finally:
            self._aside = contextlib.nullcontext

    def _fill(self, init: list[torch.Tensor]) -> None:
        self._shared = [[self.arena.tensor(spec) for spec in specs] for specs in self._specs]
        self._shared_state = [self.arena.tensor(spec) for spec in self._state_specs]
        for spec, tensor in zip(self._init_specs, init, strict=True):
            gpu_inputs.flat(self.arena.tensor(spec)).copy_(gpu_inputs.flat(tensor))
        self.sets: list[Inputs] = []
        self._sums = Sums(self.device) if self.huge else None
        self.renew()

    @property
    def input_bytes(self) -> int:
        return self.needs.inputs

    @property
    def output_bytes(self) -> int:
        return self.needs.outputs

    def _shift_of(self, tensor: torch.Tensor) -> int:
        """Elements by which the second set of a huge task lies further on; 0 where values must stay where they are."""
        moves = self.huge and tensor.is_floating_point() and tensor.is_contiguous() and tensor.nbytes > PAD
        return 512 * random.SystemRandom().randrange(1, 64) // tensor.element_size() if moves else 0

    def _lay_out(self, tensors: list[torch.Tensor]) -> tuple[list[list[Spec]], int]:
        if not self.huge:
            first, end = device_memory.layout(tensors)
            second, end = device_memory.layout(tensors, end)
            return [first, second], end
        first, end = padded(tensors, PAD)
        moved = [
            msgspec.structs.replace(spec, offset=spec.offset + shift * tensor.element_size())
            for spec, shift, tensor in zip(first, self._shifts, tensors, strict=True)
        ]
        return [first, moved], end

    # --- values ---

    def renew(self) -> None:
        """New secret values in all sets and parameters; the reference has them too."""
        self.renew_state()
        if self.huge:
            self._write_sealed(self._made())
        else:
            self.sets = [Held(self._made()), Held(gpu_inputs.changed(self._made()))]
            self.refill()
        self.give_back()

    def renew_state(self) -> None:
        """Other parameters: what was made of the ones before is wrong now."""
        generator = torch.Generator().manual_seed(_seed())
        base = {name: tensor.cpu() for name, tensor in self.reference.built.base.items()}
        with self._aside():
            made = draws.perturbed(base, self.reference.built.parameters, generator)
        state = {name: tensor.to(self.device) for name, tensor in made.items()}
        self.reference.load(state)
        everything = [*state.values(), *self.reference.built.plain.values()]
        for held, tensor in zip(self._shared_state, everything, strict=True):
            held.copy_(tensor)
        self.idle()  # a child reads them on a stream of its own

    def fresh_in_place(self) -> None:
        """Inputs in the first set's memory that nobody has seen."""
        if self.huge:
            self.sets = []
            self._write_sealed(self._made())
        else:
            self.sets[0] = Held(self._made())
            self.refill()
        self.give_back()

    def scale_in_place(self) -> None:
        """Other values in the first set's memory: what was remembered by address is wrong now."""
        if self.huge:
            self.sets = []
            self._write_sealed(gpu_inputs.changed(self._made()))
        else:
            self.sets[0] = Held(gpu_inputs.changed(self.sets[0].whole()))
            self.refill()
        self.give_back()

    def _made(self) -> Any:
        """Fresh inputs. Numbers among them are those that were made first."""
        made = self.reference.inputs(_seed())
        self.give_back()  # what get_inputs() needed besides: a padded copy would find no room among it
        found, wanted = tensors_in(made), tensors_in(self._template)
        if [(t.shape, t.stride(), t.dtype) for t in found] != [(t.shape, t.stride(), t.dtype) for t in wanted]:
            raise TaskError(f"task {self.name}: get_inputs() gives other shapes at every call; fix its sizes")
        tensors = iter(found)
        return trees.mapped(self._template, lambda _: next(tensors))

    def _write_sealed(self, made: Any) -> None:
        assert self._sums is not None
        split = self.reference.split
        sealed = [Sealed(self._tree(number), split, self._sums) for number in range(SETS)]
        self.sets = [*sealed]
        tensors = tensors_in(made)
        del made
        for number, spec in enumerate(self._specs[0]):
            tensor, tensors[number] = tensors[number], torch.empty(0)
            elements = gpu_inputs.flat(tensor)
            size, pad = elements.numel(), PAD // tensor.element_size() if self._shifts[number] else 0
            private = torch.empty(size + pad, dtype=tensor.dtype, device=self.device)
            private[:size].copy_(elements)
            private[size:].copy_(elements[:pad])
            del tensor, elements
            whole = msgspec.structs.replace(spec, shape=(size + pad,), stride=(1,))
            self.arena.tensor(whole).copy_(private)
            for which, shift in enumerate((0, self._shifts[number])):
                sealed[which].note(number, private.as_strided(spec.shape, spec.stride, shift))
            del private
        self.idle()

    def _tree(self, number: int) -> Any:
        shared = iter(self._shared[number])
        return trees.mapped(self._template, lambda _: next(shared))

    def refill(self) -> None:
        """The masters' bytes into the arena: what a child wrote there is gone."""
        for number, inputs in enumerate(self.sets):
            if isinstance(inputs, Held):
                for held, tensor in zip(self._shared[number], tensors_in(inputs.tree), strict=True):
                    gpu_inputs.flat(held).copy_(gpu_inputs.flat(tensor))
        self.idle()

    def values(self, number: int) -> Inputs:
        """A set as a child finds it."""
        return self.sets[number]

    def touched(self) -> int | None:
        """The first input that is not as it was written, of those that the module leaves alone; huge ones are looked at
        in comparing (Sealed)."""
        for number, inputs in enumerate(self.sets):
            if not isinstance(inputs, Held):
                continue
            for index, (held, tensor) in enumerate(zip(self._shared[number], tensors_in(inputs.tree), strict=True)):
                mine, right = gpu_inputs.flat(held), gpu_inputs.flat(tensor)
                same = torch.equal(mine.view(torch.uint8), right.view(torch.uint8)) if mine.numel() else True
                if index not in self.reference.mutated and not same:
                    return index
        return None

    def mutated_inputs(self, number: int) -> list[torch.Tensor]:
        """Copies of the inputs that the module changes, as the latest call on set `number` left them."""
        return [self._shared[number][index].clone() for index in self.reference.mutated]

    # --- for the wire ---

    def input_trees(self) -> list[Any]:
        """What `inputs` of a child takes."""
        found = []
        for specs in self._specs:
            places = iter([Place(arena=self.arena_name, spec=spec) for spec in specs])
            args, kwargs = self._template
            found.append([encode(list(args), places), encode(kwargs, places)])
        return found

    def init_tree(self) -> Any:
        """What `construct` of a child takes."""
        places = iter([Place(arena=self.arena_name, spec=spec) for spec in self._init_specs])
        return encode(self.reference.init, places)

    def state_trees(self) -> dict[str, Any]:
        return {
            name: Place(arena=self.arena_name, spec=spec).tree()
            for name, spec in zip(self._names, self._state_specs, strict=True)
        }

    # --- the device ---

    def idle(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def give_back(self) -> None:
        """Memory that this process holds unused, back to the device, where children need it."""
        if self.device != "cpu" and self.lean:
            torch.cuda.empty_cache()

    def close(self) -> None:
        self.sets, self._shared, self._shared_state = [], [], []
        self.arena.close()


def _attributes(plain: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that a module holds as ordinary attributes, under names that no parameter has."""
    return {f"={name}": tensor for name, tensor in plain.items()}


def _seed() -> int:
    return int.from_bytes(os.urandom(6), "little")
