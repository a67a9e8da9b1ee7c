"""What a task must give on the device, in parts, so that huge tensors fit.

The reference runs in the trusted side's process and on its own copies. A part is a range of indices of one dimension
where the task treats these one by one (tried, not guessed), else everything. For each part the module runs in its own
precision and in float64. Nothing of the whole is kept, so a task of 1.6 G elements takes its inputs, one output (the
one that is judged) and one part.

What a call does beside its output counts as well: inputs that the module itself changes, and buffers (running
statistics). How far an output may be off is in tolerance.py, the comparison in gpu/device_compare.py.
"""

import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from core.evaluation import shapes, trees
from core.evaluation.aten_costs import tensors_in
from core.evaluation.expected import ROUNDING, Built, built, is_inexact
from core.evaluation.findings import Finding
from core.evaluation.gpu import device_compare
from core.evaluation.gpu import precision as gpu_precision
from core.evaluation.gpu.device_compare import Samples as Samples
from core.evaluation.gpu.device_modes import twice_alike
from core.evaluation.gpu.inputs import Inputs, Split, as_inputs, each_within
from core.evaluation.tolerance import Expected
from core.evaluation.work import args_and_kwargs
from core.tasks.format import TaskError

PART_ELEMENTS = 1 << 26
"""Most elements of a part's largest tensor."""
SHAPES_ALONE_BYTES = 2**31
"""Inputs beyond this are not run whole to learn what outputs there are, if shapes alone tell."""
NEARBY_RUNS = 2


Aside = Callable[[], contextlib.AbstractContextManager[Any]]


class Part(msgspec.Struct, kw_only=True):
    """What one range of a call's inputs gives."""

    start: int
    stop: int
    """0, 0: everything."""
    expected: Expected
    effects: Expected | None
    """Inputs and buffers after the call, in the order of `effect_names`; None where the module changes none."""


class DeviceReference:
    """One task at one profile on one device, at the parameters that `load` set last."""

    def __init__(
        self, source: str, name: str, profile: str, device: str, part_elements: int = PART_ELEMENTS,
        sizes: dict[str, int] | None = None, aside: Aside = contextlib.nullcontext,
    ) -> None:  # fmt: skip
        """`aside` is entered while the CPU alone has work (gpu.lease.Held.aside)."""
        self.name, self.device, self._part = name, device, part_elements
        gpu_precision.reset()
        with aside():
            self._namespace = shapes.namespace_with(source, name, profile, sizes or {})
        with torch.device(device):
            self.init = args_and_kwargs(self._namespace["get_init_inputs"](), name)
            model = self._namespace["Model"](*copy.deepcopy(self.init[0]), **copy.deepcopy(self.init[1]))
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"task {name}: Model is a {type(model).__name__}, not a torch.nn.Module")
        self.flags = gpu_precision.read()
        """Precision switches that hold on all sides while this task is judged."""
        self.built: Built = built(model.to(device), self.init)
        self._state: dict[str, torch.Tensor] = self.built.base
        self._given = 0
        self.modes: list[bool] = [True]
        """Values of `training` under which the module gives the same output twice; the first is the timed one."""
        self.split: Split | None = None
        self.outputs: list[torch.Tensor] = []
        """Types and shapes of the outputs, as meta tensors."""
        self.structure: Any = None
        self.mutated: list[int] = []
        """Input tensors that the module itself changes."""
        self._between: Callable[[], None] | None = None
        self.changed_buffers: list[str] = []
        """Floating-point buffers that a call in the timed mode changes."""

    @property
    def training(self) -> bool:
        """The mode of timed calls."""
        return self.modes[0]

    @property
    def effect_names(self) -> list[str]:
        return [f"input {number}" for number in self.mutated] + self.changed_buffers

    def inputs(self, seed: int) -> list[Any]:
        """[args, kwargs] of get_inputs(), made on the device."""
        if self.device != "cpu":
            torch.cuda.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
        with torch.device(self.device), torch.no_grad():
            made = args_and_kwargs(self._namespace["get_inputs"](), self.name)
        return list(trees.mapped(made, self._plain))

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self.device).resolve_conj().resolve_neg()

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Parameters and buffers for the comparisons that follow."""
        self._state = state

    # --- running the module ---

    def _run(self, inputs: Any, double: bool, training: bool, nudge: torch.Generator | None = None) -> tuple[Any, Any]:
        """(output, effects) of one call on copies of what it changes."""
        gpu_precision.apply(self.flags)
        model = self.built.twin if double else self.built.model
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(self._state[name])
                if nudge is not None:
                    _nudged(tensor, self._state[name], nudge)
            if self.built.plain:
                model = copy.deepcopy(model)
            model.train(training)
            args, kwargs = inputs
            if double:
                args, kwargs = trees.mapped(inputs, lambda tensor: self._double(tensor, nudge))
            elif self.mutated:
                args, kwargs = trees.copied(inputs)
            output = model(*args, **kwargs)
            given, buffers = tensors_in([args, kwargs]), dict(model.named_buffers())
            effects = [given[number] for number in self.mutated]
            effects += [buffers[name].clone() for name in self.changed_buffers]
            return output, effects

    @staticmethod
    def _double(tensor: torch.Tensor, nudge: torch.Generator | None) -> torch.Tensor:
        wide = trees.to_double(tensor)
        return wide if nudge is None else _nudged(wide, tensor, nudge)

    def _exact(
        self, inputs: Any, training: bool, nudge: torch.Generator | None = None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """float64 outputs and effects; None where the module insists on its own precision or the memory does not
        suffice."""
        try:
            output, effects = self._run(inputs, True, training, nudge)
            return trees.flatten(output)[1], effects
        except (RuntimeError, TypeError, ValueError) as error:
            if "CUDA error" in str(error):
                raise
            if self.device != "cpu":
                torch.cuda.empty_cache()
            return None

    def repeatable(self, inputs: Any) -> tuple[Callable[[], None], float]:
        """The timed call as a function, at the parameters that are loaded, and which share of the whole it does: one
        part where the task comes apart."""
        source: Inputs = as_inputs(inputs)
        start, stop = (0, 1) if self.split is None else self.split.ranges()[0]
        given = source.whole() if self.split is None else source.part(self.split, start, stop)
        share = 1.0 if self.split is None else (stop - start) / self.split.size
        given = trees.copied(given) if self.mutated else given
        self._run(given, False, self.training)
        args, kwargs = given

        def again() -> None:
            with torch.no_grad():
                self.built.model(*args, **kwargs)

        return again, share

    # --- learning what the task is ---

    def learn(self, inputs: Any) -> None:
        """Find out what outputs there are, in which modes, what a call changes, and how the task comes apart."""
        given = tensors_in(inputs)
        self._given = sum(tensor.numel() for tensor in given)
        if sum(tensor.nbytes for tensor in given) <= SHAPES_ALONE_BYTES or not self._shapes_alone():
            self._learn_by_running(inputs)
        largest = max((t.numel() for t in (*given, *self.outputs)), default=0)
        if largest > self._part and not self.mutated and not self.changed_buffers:
            self.split = self._find_split(inputs, given, largest)

    def _learn_by_running(self, inputs: Any) -> None:
        inputs = trees.copied(inputs)
        given = tensors_in(inputs)
        marks = [tensor._version for tensor in given]
        found = [mode for mode in (True, False) if twice_alike(lambda m=mode: self._run(inputs, False, m)[0])]  # type: ignore[misc]
        changed = [number for number, tensor in enumerate(given) if tensor._version != marks[number]]
        if changed:  # each run found what the one before had left
            self.mutated = changed
            found = [mode for mode in (True, False) if twice_alike(lambda m=mode: self._run(inputs, False, m)[0])]  # type: ignore[misc]
        if not found:
            raise TaskError(f"task {self.name}: Model gives another output at every call, nothing can be compared")
        self.modes = found
        self.changed_buffers = [name for name, tensor in self._state.items() if name not in self.built.parameters]
        output, effects = self._run(inputs, False, self.training)
        after = zip(self.changed_buffers, effects[len(self.mutated) :], strict=True)
        self.changed_buffers = [
            name for name, tensor in after if tensor.is_floating_point() and not torch.equal(tensor, self._state[name])
        ]
        self.structure, native = trees.flatten(output)
        self.outputs = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in native]

    def _shapes_alone(self) -> bool:
        """Learn from the meta device; False where the module needs data, or keeps state that calls change."""
        drops = any(
            isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0 for part in self.built.model.modules()
        )
        if any(buffer.is_floating_point() for buffer in self.built.model.buffers()):
            return False
        try:
            with torch.device("meta"), torch.no_grad():
                init = args_and_kwargs(self._namespace["get_init_inputs"](), self.name)
                model = self._namespace["Model"](*init[0], **init[1]).train(not drops)
                args, kwargs = args_and_kwargs(self._namespace["get_inputs"](), self.name)
                given = tensors_in([args, kwargs])
                marks = [tensor._version for tensor in given]
                structure, native = trees.flatten(model(*args, **kwargs))
        except Exception:  # the task's own code, on tensors without data
            return False
        self.modes = [False] if drops else [True, False]
        self.mutated = [number for number, tensor in enumerate(given) if tensor._version != marks[number]]
        self.structure, self.outputs = structure, [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in native]
        return True

    def _find_split(self, inputs: Any, given: list[torch.Tensor], largest: int) -> Split | None:
        """A dimension of all outputs along which the task goes index by index."""
        if not given or not self.outputs:
            return None
        for dim in range(min(t.dim() for t in self.outputs)):
            size = self.outputs[0].shape[dim]
            if size < 4 or any(t.shape[dim] != size for t in self.outputs):
                continue
            fits = [tensor.dim() > dim and tensor.shape[dim] == size for tensor in given]
            biggest = [fit and tensor.numel() == largest for fit, tensor in zip(fits, given, strict=True)]
            choices = [tuple(fits), tuple(biggest)]
            for sliced in dict.fromkeys(choices):
                whole = max((t.numel() for t, cut in zip(given, sliced, strict=True) if not cut), default=0)
                each = each_within(size, largest, self._part)
                split = Split(dim=dim, size=size, each=each, sliced=sliced)
                if any(sliced) and each < size and whole <= self._part and self._comes_apart(inputs, split):
                    return split
        return None

    def _comes_apart(self, inputs: Any, split: Split) -> bool:
        """Whether a range alone gives what it gives beside its neighbours, at the start, in the middle and at the
        end."""
        each = max(1, min(split.size // 4, split.each // 4))
        for first in {0, (split.size - 2 * each) // 2, split.size - 2 * each}:
            found = [
                self._exact(split.cut(inputs, start, first + 2 * each), self.training)
                for start in (first, first + each)
            ]
            if found[0] is None or found[1] is None:
                return False
            for both, alone in zip(found[0][0], found[1][0], strict=True):
                if both.dim() <= split.dim or both.shape[split.dim] != 2 * each:
                    return False
                mine = both.narrow(split.dim, each, each)
                if mine.shape != alone.shape or not torch.allclose(mine, alone, rtol=1e-9, atol=1e-12, equal_nan=True):
                    return False
        return True

    # --- what a call gives ---

    def check(
        self, inputs: Any, got: Any, places: list[torch.Tensor], context: str = "", training: bool | None = None,
        effects: list[torch.Tensor] | None = None,
    ) -> tuple[Finding | None, list[Samples]]:  # fmt: skip
        """See `device_compare.check`."""
        return device_compare.check(self, inputs, got, places, context, training, effects)

    @contextlib.contextmanager
    def yielding(self, pause: Callable[[], None]) -> Iterator[None]:
        """Call `pause` between two parts, with the device idle: seconds of comparison keep nobody from measuring."""
        self._between = pause
        try:
            yield
        finally:
            self._between = None

    def parts(
        self, inputs: Any, training: bool | None = None, careful: bool = False, only: tuple[int, int] | None = None
    ) -> Iterator[Part]:
        """Part by part, or the one range `only`; `careful` finds out too how far one rounding of the inputs moves the
        outputs. Raises ChangedInputs."""
        source: Inputs = as_inputs(inputs)
        mode = self.training if training is None else training
        ranges = self.split.ranges() if self.split is not None else [(0, 0)]
        for start, stop in ranges if only is None else [only]:
            given = source.whole() if self.split is None else source.part(self.split, start, stop)
            yield self._part_of(given, mode, start, stop, careful)
            if self._between is not None and only is None and len(ranges) > 1:
                if self.device != "cpu":
                    torch.cuda.synchronize()
                self._between()

    def _part_of(self, given: Any, mode: bool, start: int, stop: int, careful: bool) -> Part:
        output, after = self._run(given, False, mode)
        structure, native = trees.flatten(output)
        native = [tensor.clone() for tensor in native] if self.mutated else native
        inexact = any(map(is_inexact, (*native, *tensors_in(given))))
        exact = self._exact(given, mode) if inexact else None
        if exact is not None and [t.shape for t in exact[0]] != [t.shape for t in native]:
            exact = None
        expected = self._expected(structure, native, exact[0] if exact else None)
        if careful and exact is not None:
            self._look_nearby(expected, given, mode, exact[0])
        effects = None
        if after:
            marks = ["sequence", [["tensor"]] * len(after)]
            effects = self._expected(marks, after, exact[1] if exact else None)
        return Part(start=start, stop=stop, expected=expected, effects=effects)

    def _expected(self, structure: Any, native: list[torch.Tensor], exact: Any) -> Expected:
        pairs = zip(exact or native, native, strict=True)
        return Expected(
            structure=structure,
            native=native,
            exact=[precise if exact and is_inexact(own) else own for precise, own in pairs],
            is_double=exact is not None and any(map(is_inexact, native)),
            others=[
                [other] if exact and not is_inexact(own) and other.dtype == own.dtype else []
                for own, other in zip(native, exact or native, strict=True)
            ],
            terms=self._terms(),
        )

    def _look_nearby(self, expected: Expected, given: Any, mode: bool, exact: list[torch.Tensor]) -> None:
        """As the CPU tier (expected.py): float64 runs on inputs and parameters moved by one rounding."""
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(os.urandom(7), "little"))
        near = [self._exact(given, mode, generator) for _ in range(NEARBY_RUNS)]
        seen = [found[0] for found in near if found is not None]
        for number, own in enumerate(expected.native):
            moves = [(other[number] - exact[number]).abs() for other in seen] if own.dtype == torch.float32 else []
            expected.sensitivity.append(torch.stack(moves).amax(0) if moves else None)
            if not is_inexact(own):
                expected.others[number] += [other[number] for other in seen if other[number].dtype == own.dtype]

    def _terms(self) -> float:
        """Elements that go into one output element, about."""
        taken = self._given + sum(tensor.numel() for tensor in self._state.values())
        return max(1.0, taken / max(1, sum(tensor.numel() for tensor in self.outputs)))


def _nudged(wide: torch.Tensor, own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Float64 values moved by one rounding of float32, in place."""
    if own.dtype != torch.float32:
        return wide
    sign = torch.randint(0, 2, wide.shape, generator=generator, device=wide.device).double() * 2 - 1
    return wide.mul_(1 + ROUNDING * sign)
