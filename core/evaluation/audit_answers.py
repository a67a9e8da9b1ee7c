"""How close answers that compute nothing come to a task's output: the measuring part of the audit.

One model, two input draws from fixed seeds: the output for the first is wanted, that for the second is the stale
answer. Every margin is the largest error over all elements, in units of what a rule allows there.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from core.evaluation import aten_costs
from core.evaluation.compare import tolerance
from core.tasks import format
from core.tasks.audit import MISS, OURS
from core.tasks.format import TaskError

BLOCK = 2**16
"""Elements that are compared at once: temporaries that stay in the cache are ten times faster than large ones."""
SEED = 20_260_101
ALLCLOSE = {"allclose_1e-2": 1e-2, "allclose_1e-3": 1e-3, "allclose_1e-4": 1e-4}
Margins = dict[str, dict[str, float]]
ROUNDED = {"bf16_1e-2": 1e-2, "bf16_2e-2": 2e-2}


class Measured:
    """Margins of one task's degenerate answers."""

    def __init__(self, source: str, name: str) -> None:
        problem = format.build(source, name=name)
        model = problem.model(SEED)
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"Model is a {type(model).__name__}, not a torch.nn.Module")
        draws = [list(format.init_inputs(problem.inputs(SEED + number), name)) for number in (1, 2)]
        self.training = True
        wanted = _outputs(model, draws[0], training=True)
        if not _equal(wanted, _outputs(model, draws[0], training=True, seed=1)):
            self.training = False
            wanted = _outputs(model, draws[0], training=False)
            if not _equal(wanted, _outputs(model, draws[0], training=False, seed=1)):
                raise TaskError("Model gives another output at every call, nothing can be compared")
        if not wanted:
            raise TaskError("the output holds no tensor and no number")
        self.outputs = tuple(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in wanted)
        self.notes = _notes(wanted)
        """Dtype and shape of every output."""
        self.noise = 0.0
        """Margin of the reference's own output: above 1, nothing in the task's dtype can be right."""
        self.margins = self._on(model, draws, wanted, ("allclose", "bf16", "scaled"))
        self.margins[OURS] = dict(self.margins["scaled"])
        if any(margin <= 1 for margin in self.margins[OURS].values()):
            self._try_other_distribution(model, draws)

    def _on(
        self, model: torch.nn.Module, draws: list[list[Any]], wanted: list[torch.Tensor], families: tuple[str, ...]
    ) -> Margins:
        stale = _outputs(model, draws[1], training=self.training)
        exact = _in_double(model, draws[0], self.training, wanted)
        for one, best in zip(wanted, exact or [], strict=False):
            if one.is_floating_point():
                self.noise = max(self.noise, _margin(one, best, tolerance(one, best, True), None))
        return _margins(wanted, stale, aten_costs.tensors_in(draws[0]), exact, families)

    def _try_other_distribution(self, model: torch.nn.Module, draws: list[list[Any]]) -> None:
        """What passes on the task's own inputs must also pass on wide ones (where the output stays finite there)."""
        generator = torch.Generator().manual_seed(SEED)
        for positive in (False, True):
            wide = [_mapped(inputs, lambda x: _wide(x, generator, positive)) for inputs in draws]  # noqa: B023
            try:
                wanted = _outputs(model, wide[0], training=self.training)
            except (RuntimeError, ValueError, IndexError):
                continue
            if all(bool(torch.isfinite(one).all()) for one in wanted if one.is_floating_point()):
                other = self._on(model, wide, wanted, ("scaled",))["scaled"]
                own = self.margins[OURS]
                self.margins[OURS] = {answer: max(own[answer], other.get(answer, MISS)) for answer in own}
                return
        self.notes += ("not finite on inputs of another distribution",)


def _outputs(model: torch.nn.Module, inputs: list[Any], *, training: bool, seed: int = 0) -> list[torch.Tensor]:
    """Tensors of one forward on copies of everything; numbers that are returned count as tensors."""
    torch.manual_seed(SEED - seed)
    args, kwargs = copy.deepcopy(inputs)
    with torch.no_grad():
        out = copy.deepcopy(model).train(training)(*args, **kwargs)
    return _leaves(out)


def _leaves(value: Any) -> list[torch.Tensor]:
    """Tensors and numbers of an output, in order; a Python float is a float64."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    if isinstance(value, bool | int | float):
        return [torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)]
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [leaf for part in parts for leaf in _leaves(part)]


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(first, second, strict=True)
    )


def _in_double(
    model: torch.nn.Module, inputs: list[Any], training: bool, wanted: list[torch.Tensor]
) -> list[torch.Tensor] | None:
    """The outputs in float64; None where the module insists on its own precision."""
    if not any(one.is_floating_point() for one in wanted):
        return None
    doubled = copy.deepcopy(model).double()
    for module in doubled.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.double())

    try:
        exact = _outputs(
            doubled, _mapped(inputs, lambda x: x.double() if x.is_floating_point() else x), training=training
        )
    except (RuntimeError, TypeError, ValueError):
        return None
    return exact if [one.shape for one in exact] == [one.shape for one in wanted] else None


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with all its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(part, change) for part in value])
    return {key: _mapped(part, change) for key, part in value.items()} if isinstance(value, dict) else value


def _wide(x: torch.Tensor, generator: torch.Generator, positive: bool) -> torch.Tensor:
    """Normal values of twice the usual spread; whole numbers, masks and single values stay."""
    if not x.is_floating_point() or x.numel() < 2 or (x.numel() > 8 and torch.unique(x.flatten()[:4096]).numel() <= 4):
        return x
    new = torch.randn(x.shape, generator=generator) * 2 + 0.25
    if positive:
        new = new.abs()
        if float(x.min()) >= 0 and float(x.max()) <= 1:
            new = new / (1 + new)
    return torch.where(x == 0, 0.0, new).to(x.dtype) if float((x == 0).float().mean()) > 0.05 else new.to(x.dtype)


def _margins(
    wanted: list[torch.Tensor],
    stale: list[torch.Tensor],
    inputs: list[torch.Tensor],
    exact: list[torch.Tensor] | None,
    families: tuple[str, ...],
) -> Margins:
    """rule -> answer -> margin; an answer must pass for every output."""
    table: Margins = {}
    for number, one in enumerate(wanted):
        answers = {"zeros": [torch.zeros_like(one)], "constant": [_constant(one, stale, number)]}
        answers["stale"] = [stale[number]] if _same_shape(one, stale, number) else []
        answers["identity"] = [tensor.to(one.dtype) for tensor in inputs if tensor.shape == one.shape]
        for rule, right, allowed, rounded in _rules(one, exact[number] if exact else None):
            if not rule.startswith(families):
                continue
            row = table.setdefault(rule, {})
            for answer, ways in answers.items():
                if not ways or (number and answer not in row):
                    row.pop(answer, None)  # not an answer to all outputs
                    continue
                margin = min(_margin(way, right, allowed, rounded) for way in ways)
                row[answer] = max(row.get(answer, 0.0), margin)
    return table


def _same_shape(one: torch.Tensor, others: list[torch.Tensor], number: int) -> bool:
    return number < len(others) and others[number].shape == one.shape


def _constant(one: torch.Tensor, stale: list[torch.Tensor], number: int) -> torch.Tensor:
    """The mean in every element. One element is its own mean: there the constant comes from the other draw."""
    base = stale[number] if one.numel() == 1 and number < len(stale) and stale[number].numel() else one
    if one.is_floating_point() or one.is_complex():
        finite = base[torch.isfinite(base)]
        return torch.full_like(
            one, finite.to(torch.promote_types(one.dtype, torch.float64)).mean().item() if finite.numel() else 0
        )
    middle = base.double().mean() if base.numel() else torch.tensor(0.0)
    return torch.full_like(one, bool(middle >= 0.5) if one.dtype == torch.bool else int(middle.round()))


Rule = tuple[str, torch.Tensor, torch.Tensor, torch.dtype | None]
"""(name, right values, allowed difference per element, dtype that answers are rounded to first) for one output."""


def _rules(one: torch.Tensor, exact: torch.Tensor | None) -> Iterator[Rule]:
    real = _real(one)
    for rule, limit in ALLCLOSE.items():
        yield rule, real, limit + limit * real.abs(), None
    half = torch.bfloat16 if one.is_floating_point() else None
    halved = _real(one.bfloat16()) if half else real
    for rule, limit in ROUNDED.items():
        yield rule, halved, limit + limit * halved.abs(), half
    if one.is_floating_point():
        best = one if exact is None else exact
        yield "scaled", best, tolerance(one, best, exact is not None), None
        yield "scaled_bf16", best, tolerance(one.bfloat16(), best, exact is not None), half
    else:
        parts = torch.view_as_real(one.resolve_conj()) if one.is_complex() else None
        allowed = torch.zeros_like(real) if parts is None else tolerance(parts, parts, False)
        yield "scaled", real, allowed, None
        yield "scaled_bf16", real, allowed, None


def _margin(answer: torch.Tensor, right: torch.Tensor, allowed: torch.Tensor, rounded: torch.dtype | None) -> float:
    """The largest error in units of what is allowed; 0 for an exact answer, MISS at most."""
    worst = 0.0
    parts = [_flat(tensor).split(BLOCK) for tensor in (answer, right, allowed)]
    for got, true, limit in zip(*parts, strict=True):
        got, true = (got if rounded is None else got.to(rounded)).double(), true.double()
        ratio = (got - true).abs_().div_(limit)
        ratio[got == true] = 0.0
        worst = max(worst, float(ratio.nan_to_num_(nan=MISS, posinf=MISS).max()) if ratio.numel() else 0.0)
    return round(min(worst, MISS), 6)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.double()


def _notes(wanted: list[torch.Tensor]) -> tuple[str, ...]:
    found = []
    for number, one in enumerate(wanted):
        odd = int((~torch.isfinite(one)).sum()) if one.is_floating_point() else 0
        if odd:
            found.append(f"output {number} holds {odd} values that are not finite")
        if one.numel() == 0:
            found.append(f"output {number} is empty")
    return tuple(found)
