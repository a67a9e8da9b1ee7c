"""What a task must give on the device, and whether an output is that: in parts, so that huge tensors fit.

The reference runs in the trusted side's process and on its own copies. A part is a range of rows where the task treats
rows one by one (tried, not guessed), else everything. For each part the module runs in its own precision and in
float64, and `tolerance` compares; the output's scale is that of the whole. Nothing of the whole is kept but the copy of
the output that is judged, so a task of 1.6 G elements takes its inputs, one output and one part.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from core.evaluation import compare, shapes, tolerance, trees
from core.evaluation.aten_costs import tensors_in
from core.evaluation.expected import Built, built, is_inexact
from core.evaluation.findings import Finding
from core.evaluation.tolerance import Expected
from core.evaluation.work import args_and_kwargs
from core.tasks.format import TaskError

PART_ELEMENTS = 1 << 26
"""Most elements of a part's largest tensor."""


class Samples(msgspec.Struct, kw_only=True):
    """Right values of one output at some places."""

    wanted: torch.Tensor
    """float64 (or the output's own type where it is exact), [places]"""
    allowed: torch.Tensor
    """[places], float64"""


class DeviceReference:
    """One task at one profile on one device, at the parameters that `load` set last."""

    def __init__(self, source: str, name: str, profile: str, device: str, part_elements: int = PART_ELEMENTS) -> None:
        self.name, self.device, self._part = name, device, part_elements
        self._namespace = shapes.namespace_with(source, name, profile, {})
        with torch.device(device):
            self.init = args_and_kwargs(self._namespace["get_init_inputs"](), name)
            model = self._namespace["Model"](*copy.deepcopy(self.init[0]), **copy.deepcopy(self.init[1]))
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"task {name}: Model is a {type(model).__name__}, not a torch.nn.Module")
        self.built: Built = built(model.to(device), self.init)
        drops = any(isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0 for part in model.modules())
        self.training = not drops
        """The mode of all calls: the module's own as constructed, but eval where it drops at random."""
        self._state: dict[str, torch.Tensor] = self.built.base
        self._by_rows: bool | None = None
        self.outputs: list[torch.Tensor] = []
        """Types and shapes of the outputs, as meta tensors."""
        self.structure: Any = None

    def inputs(self, seed: int) -> list[Any]:
        """[args, kwargs] of get_inputs(), made on the device."""
        if self.device == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.cuda.manual_seed(seed)
            torch.default_generator.manual_seed(seed)
        with torch.device(self.device):
            made = args_and_kwargs(self._namespace["get_inputs"](), self.name)
        return list(trees.mapped(made, lambda tensor: tensor.to(self.device)))

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Parameters and buffers for the comparisons that follow."""
        self._state = state

    def _run(self, inputs: Any, double: bool) -> Any:
        model = self.built.twin if double else self.built.model
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(self._state[name])
            model.train(self.training)
            args, kwargs = trees.mapped(inputs, trees.to_double) if double else inputs
            return model(*args, **kwargs)

    def _exact(self, inputs: Any) -> list[torch.Tensor] | None:
        """float64 outputs; None where the module insists on its own precision or the memory does not suffice."""
        try:
            return trees.flatten(self._run(inputs, double=True))[1]
        except (RuntimeError, TypeError, ValueError):
            if self.device != "cpu":
                torch.cuda.empty_cache()
            return None

    def learn(self, inputs: Any) -> None:
        """Run once for the outputs' types, and find out whether rows go one by one."""
        self.structure, native = trees.flatten(self._run(inputs, double=False))
        self.outputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in native]
        given = [tensor for tensor in tensors_in(inputs)]
        rows = native[0].shape[0] if native and native[0].dim() > 1 else 0
        alike = bool(given) and rows > 3 and all(t.dim() > 1 and t.shape[0] == rows for t in (*given, *native))
        largest = max((t.numel() for t in (*given, *native)), default=0)
        del native
        self._by_rows = False
        if not alike or largest <= self._part:
            return
        each = max(1, min(rows // 4, math.ceil(rows * self._part / largest / 4)))
        outputs = [self._exact(_rows(inputs, rows, first, last)) for first, last in ((0, 2 * each), (each, 2 * each))]
        if outputs[0] is None or outputs[1] is None:
            return
        self._by_rows = all(
            torch.allclose(both[each:], alone, rtol=1e-9, atol=1e-12, equal_nan=True)
            for both, alone in zip(outputs[0], outputs[1], strict=True)
        )

    def parts(self, inputs: Any) -> Iterator[tuple[slice | None, Expected]]:
        """(rows, what these rows give); rows None is everything."""
        ranges: list[tuple[slice | None, Any]] = [(None, inputs)]
        if self._by_rows:
            rows = self.outputs[0].shape[0]
            largest = max(t.numel() for t in (*tensors_in(inputs), *self.outputs))
            each = max(1, math.floor(rows * self._part / largest))
            starts = range(0, rows, each)
            ranges = [(slice(at, min(rows, at + each)), _rows(inputs, rows, at, min(rows, at + each))) for at in starts]
        for chosen, given in ranges:
            structure, native = trees.flatten(self._run(given, double=False))
            exact = self._exact(given) if any(map(is_inexact, native)) else None
            double = exact is not None and [t.shape for t in exact] == [t.shape for t in native]
            pairs = zip(exact or native, native, strict=True)
            yield (
                chosen,
                Expected(
                    structure=structure,
                    native=native,
                    exact=[precise if double and is_inexact(own) else own for precise, own in pairs],
                    is_double=double,
                    terms=self._terms(inputs),
                ),
            )

    def _terms(self, inputs: Any) -> float:
        given = sum(tensor.numel() for tensor in (*tensors_in(inputs), *self._state.values()))
        return max(1.0, given / max(1, sum(tensor.numel() for tensor in self.outputs)))

    def scales(self, inputs: Any) -> list[tuple[float, float, float] | None]:
        """(centre, largest size, spread) of every whole output; None where it is exact or empty."""
        sums: list[list[float]] = [[0.0, 0.0, 0.0, 0.0] for _ in self.outputs]
        for _, expected in self.parts(inputs):
            for number, exact in enumerate(expected.exact):
                if not exact.is_floating_point():
                    continue
                wanted = exact.double()
                finite = wanted[torch.isfinite(wanted) & torch.isfinite(expected.native[number])]
                if finite.numel():
                    held = sums[number]
                    held[0] += finite.numel()
                    held[1] += float(finite.sum())
                    held[2] += float(finite.square().sum())
                    held[3] = max(held[3], float(finite.abs().max()))
        found: list[tuple[float, float, float] | None] = []
        for count, total, squares, largest in sums:
            if not count:
                found.append(None)
                continue
            centre, rms = total / count, math.sqrt(squares / count)
            found.append((centre, largest, max(math.sqrt(max(0.0, squares / count - centre**2)), 0.05 * rms)))
        return found

    def check(
        self, inputs: Any, got: list[torch.Tensor], places: list[torch.Tensor], context: str = ""
    ) -> tuple[Finding | None, list[Samples]]:
        """Compare output tensors (right in type and shape) with what the inputs give; also the right values at
        `places` (flat indices per output)."""
        scales = self.scales(inputs) if self._by_rows else [None] * len(self.outputs)
        samples = [
            Samples(
                wanted=torch.zeros(at.shape, dtype=torch.float64 if is_inexact(own) else own.dtype, device=self.device),
                allowed=torch.zeros(at.shape, dtype=torch.float64, device=self.device),
            )
            for own, at in zip(self.outputs, places, strict=True)
        ]
        for rows, expected in self.parts(inputs):
            mine = got if rows is None else [tensor[rows] for tensor in got]
            if rows is None:
                finding = compare.check(expected, trees_like(expected.structure, mine), context)
            else:
                finding = self._check_rows(expected, mine, scales, rows, context)
            if finding is not None:
                return finding, samples
            for number, at in enumerate(places):
                _sample(samples[number], expected, number, at, rows, scales[number])
        return None, samples

    def _check_rows(
        self, expected: Expected, got: list[torch.Tensor], scales: list[Any], rows: slice, context: str
    ) -> Finding | None:
        for number, tensor in enumerate(got):
            native, exact = expected.native[number], expected.exact[number]
            if not native.is_floating_point():
                bad = tensor != native
            else:
                allowed = tolerance.bound(native, exact, expected.is_double, None, expected.terms, scales[number])
                known = torch.isfinite(native)
                close = (tensor.double() - exact.double()).abs() <= allowed
                same = (tensor == native) | (torch.isnan(tensor) & torch.isnan(native))
                bad = torch.where(known, ~close, ~same)
            if bool(bad.any()):
                name = "output" if len(got) == 1 else f"output {number}"
                where = f"In rows {rows.start:,} to {rows.stop:,} (indices from the first of them)."
                odd = native.is_floating_point() and bool((~torch.isfinite(tensor[bad])).any())
                category = "non_finite" if odd else "wrong_value"
                return compare._report(category, name, tensor, exact, bad, where, context)
        return None


def trees_like(structure: Any, tensors: list[torch.Tensor]) -> Any:
    """The nested value of a structure (`trees.flatten`) and its tensors in order."""
    return _made(structure, iter(tensors))


def _made(node: Any, remaining: Iterator[torch.Tensor]) -> Any:
    kind, *body = node
    if kind == "tensor":
        return next(remaining)
    if kind == "sequence":
        return [_made(part, remaining) for part in body[0]]
    if kind == "dict":
        return {key: _made(part, remaining) for key, part in body[0].items()}
    return body[0]


def _rows(inputs: Any, rows: int, first: int, last: int) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[first:last] if tensor.dim() and tensor.shape[0] == rows else tensor

    return trees.mapped(inputs, cut)


def _sample(
    samples: Samples, expected: Expected, number: int, places: torch.Tensor, rows: slice | None, scale: Any
) -> None:
    native, exact = expected.native[number], expected.exact[number]
    start = 0 if rows is None else rows.start * (native.numel() // max(1, native.shape[0]))
    here = (places >= start) & (places < start + native.numel())
    at = places[here] - start
    if not at.numel():
        return
    samples.wanted[here] = exact.flatten()[at].to(samples.wanted.dtype)
    if native.is_floating_point():
        if scale is None:
            known = exact.double()
            scale = tolerance.scale_of(known[torch.isfinite(known) & torch.isfinite(native)])
        part = native.flatten()[at], exact.flatten()[at]
        samples.allowed[here] = 2 * tolerance.bound(*part, expected.is_double, None, expected.terms, scale)
