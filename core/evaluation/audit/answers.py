"""How close answers that compute nothing come to a task's output: the measuring part of the audit.

Calls are made as the judge makes them: parameters perturbed, outputs in the task's precision and in float64
(`core.evaluation.expected`), inputs as given and in another distribution, in the other mode where there are two. Only
the seeds are fixed. A second set of inputs with the same parameters gives the stale answer.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.evaluation import aten_costs, trees
from core.evaluation.audit.rules import Judged, number_margins, others
from core.evaluation.draws import SIGNED, perturbed, transformed
from core.evaluation.expected import all_finite, built, forward, is_inexact, odd_count
from core.evaluation.tolerance import Expected
from core.evaluation.work import args_and_kwargs
from core.tasks import format
from core.tasks.audit import MISS, OURS
from core.tasks.format import TaskError

SEED = 20_260_101
Margins = dict[str, dict[str, float]]
State = dict[str, torch.Tensor]


class Call(msgspec.Struct, kw_only=True):
    """One call: what it must give, and what it gives for other inputs and the same parameters."""

    state: State
    inputs: Any
    other_inputs: Any
    kind: str
    expected: Expected
    stale: Any


class Measured:
    """Margins of one task's degenerate answers."""

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        self._problem = format.build(source, name=name)
        model = self._problem.model(SEED)
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"Model is a {type(model).__name__}, not a torch.nn.Module")
        self._built = built(model, [list(self._problem.init_args), self._problem.init_kwargs])
        modes = self._usable_modes()
        self.training = modes[0]
        """Mode of the first call; the second has the other one where both are usable."""
        call = self._call(0, (), modes[0])
        native, numbers = call.expected.native, list(_numbers(call.expected.structure))
        if not native and not numbers:
            raise TaskError("the output holds no tensor and no number")
        self.outputs = tuple(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in native)
        self.outputs += tuple(type(number).__name__ for number in numbers)
        """Dtype and shape of every output."""
        self.notes = tuple(_notes(native))
        self.own: dict[str, float] = {}
        """rule -> margin of the task's own output: above 1, nothing in its dtype can be right."""
        self.margins: Margins = _margins(call, plain=True)
        self.own["scaled"] = _own(call.expected)
        self._in_bfloat16(call, modes[0])
        self._changed(modes[-1])

    def _changed(self, training: bool) -> None:
        """What passes must also pass on other values, as in the judge's second call. Of its two distributions one is
        drawn per candidate, so passing one of them is enough to be paid."""
        ours = dict(self.margins["scaled"])
        nearest = dict.fromkeys(ours, MISS)
        self.own[OURS] = self.own["scaled"]
        for number, kinds in enumerate(SIGNED, start=1):
            call = self._call(number, kinds, training)
            if call.kind == "plain":
                self.notes += ("not finite on inputs of another distribution",)
            found = _margins(call, plain=False)["scaled"]
            nearest = {answer: min(margin, found.get(answer, MISS)) for answer, margin in nearest.items()}
            self.own[OURS] = max(self.own[OURS], _own(call.expected))
            if min(ours.values(), default=MISS) > 1 or call.kind == "plain":
                break  # nothing passes anyway, or the other distribution gives the same
        self.margins[OURS] = {answer: max(ours[answer], nearest[answer]) for answer in ours}

    def _usable_modes(self) -> list[bool]:
        """Modes in which the module gives the same output twice."""
        inputs = args_and_kwargs(self._problem.inputs(SEED), self._name)
        usable = []
        for training in (True, False):
            outputs = []
            for seed in (0, 1):
                torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack trace
                outputs.append(trees.flatten(forward(copy.deepcopy(self._built.model), inputs, training)))
            (structure, first), (again, second) = outputs
            same = len(first) == len(second) and str(structure) == str(again)
            if same and all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)):
                usable.append(training)
        if not usable:
            raise TaskError("Model gives another output at every call, nothing can be compared")
        return usable

    def _call(self, number: int, kinds: tuple[str, ...], training: bool) -> Call:
        """As the judge draws one: the first distribution under which the output stays as finite as on given values."""
        generator = torch.Generator().manual_seed(SEED + number)
        state = perturbed(self._built.base, self._built.parameters, generator)
        seeds = SEED + 2 * number, SEED + 2 * number + 1
        base, other = (args_and_kwargs(self._problem.inputs(seed), self._name) for seed in seeds)
        plain: Expected | None = None
        for kind in (*kinds, "plain"):
            inputs = transformed(base, kind, generator)
            try:
                expected = self._built.expect(state, inputs, training, generator)
            except Exception:  # the task's own code on values that it did not make
                if kind == "plain":
                    raise
                continue
            if kind == "plain" or all_finite(expected):
                break
            plain = plain or self._built.expect(state, base, training, generator)
            if odd_count(expected) <= odd_count(plain):
                break
        other = transformed(other, kind, generator)
        stale = _outputs(self._built.model, state, other, training)
        return Call(state=state, inputs=inputs, other_inputs=other, kind=kind, expected=expected, stale=stale)

    def _in_bfloat16(self, call: Call, training: bool) -> None:
        """The same call with parameters, inputs and operators in bfloat16, under the judge's rule for that dtype."""
        state = {name: _to_bfloat16(tensor) for name, tensor in call.state.items()}
        inputs, other = (trees.mapped(given, _to_bfloat16) for given in (call.inputs, call.other_inputs))
        try:
            half = built(_bfloat16_module(self._built.model), self._built.init)
            with AccumulatesInFloat32():
                result = _outputs(half.model, state, inputs, training)
                stale = _outputs(half.model, state, other, training)
            wide = {name: trees.to_double(tensor) for name, tensor in state.items()}
            exact = _outputs(half.twin, wide, trees.mapped(inputs, trees.to_double), training)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            self.notes += (f"does not run in bfloat16: {' '.join(str(error).split())}"[:120],)
            return
        (structure, native), precise = trees.flatten(result), trees.flatten(exact)[1]
        wanted = call.expected.native
        dtypes = [torch.bfloat16 if one.is_floating_point() else one.dtype for one in wanted]
        if [one.dtype for one in native] != dtypes or [one.shape for one in native] != [one.shape for one in precise]:
            self.notes += ("does not stay in bfloat16",)
            return
        expected = Expected(
            structure=structure,
            native=native,
            exact=[one if is_inexact(own) else own for one, own in zip(precise, native, strict=True)],
            is_double=any(map(is_inexact, native)),
            others=[[] if is_inexact(own) else [one] for one, own in zip(precise, native, strict=True)],
            terms=call.expected.terms,
        )
        call = Call(state=state, inputs=inputs, other_inputs=other, kind="plain", expected=expected, stale=stale)
        self.margins["scaled_bf16"] = _margins(call, plain=False)["scaled"]
        self.own["scaled_bf16"] = _own(expected)


def _outputs(model: torch.nn.Module, state: State, inputs: Any, training: bool) -> Any:
    """One forward with these parameters and buffers; tensors of their own."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(state[name])
    return trees.mapped(forward(copy.deepcopy(model), inputs, training), lambda tensor: tensor.detach().clone())


def _own(expected: Expected) -> float:
    """Margin of the output in the task's own precision."""
    margins = [Judged(expected, number).margin(native) for number, native in enumerate(expected.native)]
    return round(max(margins, default=0.0), 6)


def _margins(call: Call, *, plain: bool) -> Margins:
    """rule -> answer -> margin; an answer must pass for every output. plain: also under other systems' rules."""
    table: Margins = {"scaled": {}}
    first = True

    def note(rule: str, answer: str, margin: float) -> None:
        row = table.setdefault(rule, {})
        if first or answer in row:
            row[answer] = max(row.get(answer, 0.0), round(margin, 6))

    stale_structure, stale = trees.flatten(call.stale)
    inputs = aten_costs.tensors_in(call.inputs)
    for number, one in enumerate(call.expected.native):
        judged = Judged(call.expected, number)
        same = stale[number] if number < len(stale) and stale[number].shape == one.shape else None
        ways = {"zeros": [torch.zeros_like(one)], "constant": [_constant(one, stale, number)]}
        ways["stale"] = [same] if same is not None and same.dtype == one.dtype else []
        ways["identity"] = [tensor.to(one.dtype) for tensor in inputs if tensor.shape == one.shape]
        for answer, tensors in ways.items():
            if not tensors:
                for row in table.values():
                    row.pop(answer, None)  # not an answer to all outputs
                continue
            best: dict[str, float] = {}
            for tensor in tensors:
                found = [("scaled", judged.margin(tensor)), *(others(one, tensor) if plain else ())]
                best = {rule: min(margin, best.get(rule, MISS)) for rule, margin in found}
            for rule, margin in best.items():
                note(rule, answer, margin)
        first = False
    old = list(_numbers(stale_structure))
    for number, value in enumerate(_numbers(call.expected.structure)):
        other = old[number] if number < len(old) else value
        for answer, given in (("zeros", type(value)(0)), ("constant", other), ("stale", other)):
            for rule, margin in number_margins(value, given):
                if plain or rule == "scaled":
                    note(rule, answer, margin)
        for row in table.values():
            row.pop("identity", None)
        first = False
    return table


def _numbers(structure: Any) -> Iterator[bool | int | float]:
    """Numbers that a module returns beside tensors, in order."""
    kind, *body = structure
    if kind == "value" and isinstance(body[0], bool | int | float):
        yield body[0]
    for part in body[0] if kind == "sequence" else body[0].values() if kind == "dict" else ():
        yield from _numbers(part)


def _constant(one: torch.Tensor, stale: list[torch.Tensor], number: int) -> torch.Tensor:
    """The mean in every element. One element is its own mean: there the constant comes from the other inputs."""
    base = stale[number] if one.numel() == 1 and number < len(stale) and stale[number].numel() else one
    if is_inexact(one):
        finite = base[torch.isfinite(base)]
        wide = torch.promote_types(one.dtype, torch.float64)
        return torch.full_like(one, finite.to(wide).mean().item() if finite.numel() else 0)
    middle = float(base.double().mean()) if base.numel() else 0.0
    return torch.full_like(one, middle >= 0.5 if one.dtype == torch.bool else math.floor(middle + 0.5))


def _notes(outputs: list[torch.Tensor]) -> Iterator[str]:
    for number, one in enumerate(outputs):
        odd = int((~torch.isfinite(one)).sum()) if is_inexact(one) else 0
        if odd:
            yield f"output {number} holds {odd} values that are not finite"
        if one.numel() == 0:
            yield f"output {number} is empty"


# --- bfloat16 ---


def _to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


def _bfloat16_module(model: torch.nn.Module) -> torch.nn.Module:
    half = copy.deepcopy(model).bfloat16()
    for module in half.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, _to_bfloat16(value))
    return half


class AccumulatesInFloat32(TorchDispatchMode):
    """Matrix products and convolutions of bfloat16 tensors sum in float32 and round once, as matrix units do. CPUs
    without such units take fifty times as long in torch's own kernels."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = aten_costs.tensors_in([args, kwargs])
        if not aten_costs.is_dot(aten_costs.operator_name(func)) or any(one.dtype != torch.bfloat16 for one in given):
            return func(*args, **kwargs)
        wide = func(*trees.mapped(args, torch.Tensor.float), **trees.mapped(kwargs, torch.Tensor.float))
        return trees.mapped(wide, _to_bfloat16)
