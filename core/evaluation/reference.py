"""The trusted side's knowledge of a task: secret inputs, parameters, expected outputs, least cost.

Runs only in a judge's worker, never near a candidate. Seeds come from os.urandom, fresh for every candidate, so nothing
can be computed ahead. Parameters are perturbed (a bias that starts at zero would hide its omission) and differ from
draw to draw; input draws differ in distribution and scale as far as the reference stays finite on them. Expected
values are computed in float64 where the module allows it; the difference to its own precision says how exact an
answer can be.
"""

import copy
import os
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.evaluation import aten_costs, values
from core.tasks import format
from core.tasks.format import TaskError

MAX_INPUT_BYTES = 256 * 2**20
"""More than this is not for the interpreter."""


class TooLargeError(TaskError):
    """The task's sizes are beyond the CPU tier."""


class Expected(msgspec.Struct, kw_only=True):
    """What one draw must give."""

    structure: Any
    """Nesting of the output with tensors replaced by their number."""
    native: list[torch.Tensor]
    """Outputs in the task's own precision: dtype and shape that are demanded."""
    exact: list[torch.Tensor]
    """The same computed in float64 (where that was possible)."""
    is_double: bool


class Draw(msgspec.Struct, kw_only=True):
    """One set of inputs and parameters, and what they must give."""

    inputs: Any
    """[args, kwargs]"""
    state: dict[str, torch.Tensor]
    plain: dict[str, torch.Tensor]
    training: bool
    grad: bool
    same_places: bool
    """The candidate sees these inputs in the memory of the draw before."""
    kind: str
    expected: Expected


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the reference does at one profile, operator by operator: the eager baseline of the speed model."""

    operators: tuple[tuple[str, int, int], ...]
    """(name, bytes, flops) of every operator that is not free."""
    compulsory_bytes: int
    """Inputs, parameters and outputs, each once: no implementation moves less."""
    dot_flops: int
    other_flops: int


def args_and_kwargs(value: Any, name: str) -> list[Any]:
    """KernelBench's `[args...]` and KernelBook's `[[args...], {kwargs}]` as [args, kwargs]."""
    args, kwargs = format.init_inputs(value, name)
    return [list(args), kwargs]


def load_namespace(source: str, name: str, profile: str) -> dict[str, Any]:
    """The task's source executed at the profile's sizes; raises TaskError when the format is not kept."""
    text = format.with_profile(source, profile, name)
    namespace: dict[str, Any] = {"__name__": "kernelmill_task"}
    exec(compile(text, f"<task {name}>", "exec"), namespace)
    return namespace


class Counter(TorchDispatchMode):
    """Lists the operators of the reference."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, int, int]] = []
        self.dot_flops = 0
        self.other_flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, moved, flops, compute = aten_costs.cost(func, args, kwargs, out)
        if moved:
            self.operators.append((name, moved, flops))
        if aten_costs.is_dot(name):
            self.dot_flops += flops
        elif compute:
            self.other_flops += flops
        return out


class Reference:
    """One task at one profile; made once per task and worker, holds no secrets between candidates."""

    def __init__(self, source: str, name: str, profile: str) -> None:
        self.name, self.profile = name, profile
        self._source = source
        self.namespace = load_namespace(source, name, profile)
        self._full: Work | None = None
        self.work = self._count_at(profile, on_meta=True)
        if self.work is not None and self.work.compulsory_bytes > MAX_INPUT_BYTES:
            size = self.work.compulsory_bytes / 2**20
            raise TooLargeError(f"task {name} moves {size:.0f} MiB at profile {profile!r}: too much for the CPU tier")
        self.modes = self._usable_modes()
        if self.work is None:
            self.work = self._count_at(profile, on_meta=False)
        assert self.work is not None

    # --- building ---

    def _inputs(self) -> list[Any]:
        return args_and_kwargs(self.namespace["get_inputs"](), self.name)

    def init_inputs(self) -> list[Any]:
        """[args, kwargs] of the constructor."""
        return args_and_kwargs(self.namespace["get_init_inputs"](), self.name)

    def build(self, seed: int) -> tuple[torch.nn.Module, list[Any]]:
        """A Model with fresh parameters, and the init inputs that made it."""
        torch.default_generator.manual_seed(seed)
        init = self.init_inputs()
        model = self.namespace["Model"](*copy.deepcopy(init[0]), **copy.deepcopy(init[1]))
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"task {self.name}: Model is a {type(model).__name__}, not a torch.nn.Module")
        return model, init

    def _usable_modes(self) -> list[bool]:
        """Values of `training` under which the reference gives the same output twice."""
        usable = []
        model, _ = self.build(_seed())
        inputs = self._inputs()
        for training in (True, False):
            outputs = []
            for _ in range(2):
                torch.default_generator.manual_seed(_seed())
                outputs.append(self._forward(copy.deepcopy(model), inputs, training))
            first, second = (aten_costs.tensors_in(output) for output in outputs)
            if all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)):
                usable.append(training)
        if not usable:
            raise TaskError(f"task {self.name}: Model gives another output at every call, nothing can be compared")
        return usable

    @staticmethod
    def _forward(model: torch.nn.Module, inputs: list[Any], training: bool) -> Any:
        model.train(training)
        args, kwargs = _copied(inputs)
        with torch.no_grad():
            return model(*args, **kwargs)

    # --- draws ---

    def draws(self, count: int) -> tuple[list[Draw], list[Any], list[str]]:
        """`count` draws with secret values, the init inputs, and the names that ModelNew must have."""
        model, init = self.build(_seed())
        required = [name for name, _ in model.named_parameters()]
        required += [
            name for name, buffer in model.named_buffers() if buffer.is_floating_point() and name in model.state_dict()
        ]
        plain = _plain_tensors(model)
        generator = torch.Generator().manual_seed(_seed())
        found: list[Draw] = []
        for index in range(count):
            state = _perturbed(model, generator)
            with torch.no_grad():
                _load(model, state)
            training = self.modes[index % len(self.modes)]
            torch.default_generator.manual_seed(_seed())
            base = self._inputs()
            for kind in _KINDS[index % len(_KINDS)]:
                inputs = _transformed(base, kind, generator)
                expected = self._expect(model, inputs, training)
                if kind == "plain" or _as_finite(expected, self, model, base, training):
                    break
            found.append(
                Draw(
                    inputs=inputs,
                    state=state,
                    plain=plain,
                    training=training,
                    grad=index % 3 == 1,
                    same_places=index % 2 == 1,
                    kind=kind,
                    expected=expected,
                )
            )
        return found, init, required

    def _expect(self, model: torch.nn.Module, inputs: list[Any], training: bool) -> Expected:
        native = self._forward(copy.deepcopy(model), inputs, training)
        structure, tensors = flatten(native)
        exact, is_double = tensors, False
        if any(tensor.is_floating_point() for tensor in tensors):
            try:
                doubled = self._forward(_double_module(model), _double(inputs), training)
                found = flatten(doubled)[1]
                if [part.shape for part in found] == [part.shape for part in tensors]:
                    exact, is_double = found, True
            except (RuntimeError, TypeError, ValueError):
                pass  # the module insists on its own precision
        return Expected(structure=structure, native=tensors, exact=exact, is_double=is_double)

    # --- cost ---

    def full_work(self) -> Work:
        """The work at the `full` profile, from shapes alone; this profile's where that can't be had."""
        if self._full is None:
            self._full = (self._count_at("full", on_meta=True) if self.profile != "full" else None) or self.work
        assert self._full is not None
        return self._full

    def _count_at(self, profile: str, on_meta: bool) -> Work | None:
        """Count operators; on the meta device nothing is computed and None says that the module can't do that."""
        namespace = load_namespace(self._source, self.name, profile)
        try:
            with torch.device("meta" if on_meta else "cpu"):
                init = args_and_kwargs(namespace["get_init_inputs"](), self.name)
                model = namespace["Model"](*init[0], **init[1])
                args, kwargs = args_and_kwargs(namespace["get_inputs"](), self.name)
                model.eval()
                counter = Counter()
                with torch.no_grad(), counter:
                    out = model(*args, **kwargs)
        except Exception:
            if on_meta:
                return None
            raise
        held = [*model.parameters(), *model.buffers()]
        moved = aten_costs.tensors_in([args, kwargs]) + held + aten_costs.tensors_in(out)
        return Work(
            operators=tuple(counter.operators),
            compulsory_bytes=sum(tensor.numel() * tensor.element_size() for tensor in moved),
            dot_flops=counter.dot_flops,
            other_flops=counter.other_flops,
        )


_KINDS = (
    ("plain",),
    ("wide", "wide_positive", "scaled", "plain"),
    ("narrow", "narrow_positive", "scaled", "plain"),
    ("mixed", "scaled", "plain"),
)
"""Per draw, distributions in the order in which they are tried; the first that keeps the reference finite is used."""


def _seed() -> int:
    return int.from_bytes(os.urandom(7), "little")


def flatten(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """Nesting with numbered tensors, and the tensors; lists and tuples count as the same."""
    tensors: list[torch.Tensor] = []

    def visit(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            tensors.append(item.detach())
            return ["tensor"]
        if isinstance(item, (list, tuple)):
            return ["sequence", [visit(part) for part in item]]
        if isinstance(item, dict):
            return ["dict", {str(key): visit(part) for key, part in item.items()}]
        return ["value", item if isinstance(item, (int, float, str, bool, type(None))) else repr(item)]

    return visit(value), tensors


def _copied(inputs: Any) -> Any:
    return _mapped(inputs, lambda tensor: tensor.clone())


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(part, change) for part in value])
    if isinstance(value, dict):
        return {key: _mapped(part, change) for key, part in value.items()}
    return value


def _double(inputs: Any) -> Any:
    return _mapped(inputs, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor.clone())


def _double_module(model: torch.nn.Module) -> torch.nn.Module:
    doubled = copy.deepcopy(model).double()
    for module in doubled.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    return doubled


def _plain_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that a module holds as ordinary attributes: random ones must reach the candidate too."""
    found = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                found[f"{path}.{name}" if path else name] = value.detach().clone()
    return found


def _perturbed(model: torch.nn.Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Parameters with noise of about a tenth of their size (a tenth where they are all equal), running statistics too;
    other buffers as they are."""
    state = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach().clone()
        if value.is_floating_point() and value.numel():
            size = float(value.float().std()) if value.numel() > 1 else 0.0
            noise = torch.randn(value.shape, generator=generator) * (0.1 * size if size > 1e-6 else 0.1)
            value = (value.float() + noise).to(value.dtype)
        state[name] = value
    for name, buffer in model.named_buffers():
        value = buffer.detach().clone()
        if name.endswith("running_mean"):
            value = value + 0.1 * torch.randn(value.shape, generator=generator)
        elif name.endswith("running_var"):
            value = value * (0.5 + torch.rand(value.shape, generator=generator))
        state[name] = value
    return state


def _load(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        tensor.copy_(state[name])


def _transformed(inputs: Any, kind: str, generator: torch.Generator) -> Any:
    """Other values in the same shapes; integers, masks, structural zeros and symmetry stay what they are."""

    def change(x: torch.Tensor) -> torch.Tensor:
        if kind == "plain" or not x.is_floating_point() or x.numel() < 2:
            return x
        if not bool(torch.isfinite(x).all()) or (x.numel() > 8 and torch.unique(x).numel() <= 4):
            return x
        work = x.float()
        scale, shift = torch.rand(2, generator=generator).tolist()
        noise = torch.randn(x.shape, generator=generator)
        if kind.startswith("wide"):
            new = noise * (1.5 + 1.5 * scale) + (shift - 0.5)
        elif kind.startswith("narrow"):
            new = noise * (0.05 + 0.2 * scale) + (shift - 0.5)
        elif kind == "mixed":
            new = noise * torch.exp(torch.randn(x.shape, generator=generator))
        else:
            new = work * (0.5 + scale)
        if kind.endswith("positive"):
            new = new.abs()
            low, high = float(work.min()), float(work.max())
            if low >= 0 and high <= 1:
                new = new / (1 + new)
        if float((work == 0).float().mean()) > 0.05:
            new = torch.where(work == 0, 0.0, new)
        if x.dim() == 2 and x.shape[0] == x.shape[1] and torch.equal(x, x.T):
            new = (new + new.T) / 2
        return new.to(x.dtype)

    return _mapped(inputs, change)


def _as_finite(expected: Expected, reference: Reference, model: torch.nn.Module, base: Any, training: bool) -> bool:
    """Whether the transformed inputs brought no NaN or infinity that the plain ones don't give."""
    parts = [part for part in (*expected.native, *expected.exact) if part.is_floating_point()]
    if all(bool(torch.isfinite(part).all()) for part in parts):
        return True
    plain = reference._expect(model, base, training)
    before = sum(int((~torch.isfinite(part)).sum()) for part in plain.native if part.is_floating_point())
    after = sum(int((~torch.isfinite(part)).sum()) for part in expected.native if part.is_floating_point())
    return after <= before


def mutates_inputs(reference: Reference) -> bool:
    """Whether the reference itself changes its inputs; then a candidate may too."""
    model, _ = reference.build(_seed())
    args, kwargs = reference._inputs()
    before = [values.raw_bytes(tensor) for tensor in aten_costs.tensors_in([args, kwargs])]
    with torch.no_grad():
        model.train(reference.modes[0])(*args, **kwargs)
    return before != [values.raw_bytes(tensor) for tensor in aten_costs.tensors_in([args, kwargs])]
