"""What a task's module must give: its outputs in its own precision, in float64, and how exact an answer can be.

A `Built` is one construction of the task's Model with its float64 twin. Parameters and buffers are loaded before every
run, so that a module that changes its own buffers starts from the same ones.
"""

import copy
from typing import Any

import msgspec
import torch

from core.evaluation import aten_costs, trees
from core.evaluation.tolerance import Expected

ROUNDING = 2.0**-24
"""Half a unit in the last place of a float32 with mantissa 1."""


class Built(msgspec.Struct, kw_only=True):
    """One module in its own precision and in float64."""

    init: list[Any]
    """[args, kwargs] of the constructor."""
    model: torch.nn.Module
    twin: torch.nn.Module
    base: dict[str, torch.Tensor]
    """Parameters and buffers as constructed."""
    plain: dict[str, torch.Tensor]
    """Tensors held as ordinary attributes: random ones must reach the candidate too."""

    @property
    def parameters(self) -> set[str]:
        return {name for name, _ in self.model.named_parameters()}

    @property
    def required(self) -> list[str]:
        """Names that ModelNew must have."""
        kept = self.model.state_dict()
        buffers = self.model.named_buffers()
        return [name for name, _ in self.model.named_parameters()] + [
            name for name, buffer in buffers if buffer.is_floating_point() and name in kept
        ]

    def expect(
        self, state: dict[str, torch.Tensor], inputs: Any, training: bool, generator: torch.Generator
    ) -> Expected:
        """The outputs for these parameters and inputs ([args, kwargs]); raises what the task's code raises."""
        _load(self.model, state)
        model = copy.deepcopy(self.model) if self.plain else self.model
        structure, native = trees.flatten(forward(model, inputs, training))
        # Views of inputs, parameters or buffers would change with the next call.
        native = [tensor.clone() for tensor in native]
        given = sum(tensor.numel() for tensor in (*aten_costs.tensors_in(inputs), *state.values()))
        result = Expected(
            structure=structure,
            native=native,
            exact=native,
            is_double=False,
            terms=max(1.0, given / max(1, sum(tensor.numel() for tensor in native))),
        )
        if not any(is_inexact(tensor) for tensor in (*native, *aten_costs.tensors_in(inputs), *state.values())):
            return result
        exact = self._in_double(state, trees.mapped(inputs, trees.to_double), training)
        if exact is None or [part.shape for part in exact] != [part.shape for part in native]:
            return result
        result.exact = [
            precise if is_inexact(own) else own for precise, own in zip(exact, native, strict=True)
        ]  # integers: what the task's own precision gives, the other is an alternative near a tie
        result.is_double = any(is_inexact(tensor) for tensor in native)
        seen = [exact]

        def nudged(tensor: torch.Tensor) -> torch.Tensor:
            wide = trees.to_double(tensor)
            if tensor.dtype != torch.float32:
                return wide
            return wide * (1 + ROUNDING * (torch.randint(0, 2, wide.shape, generator=generator).double() * 2 - 1))

        for _ in range(2):
            near = {name: nudged(tensor) for name, tensor in state.items()}
            moved = self._in_double(near, trees.mapped(inputs, nudged), training)
            if moved is not None:
                seen.append(moved)
        for number, own in enumerate(native):
            others = [outputs[number] for outputs in seen]
            result.others.append([] if is_inexact(own) else [other for other in others if other.dtype == own.dtype])
            known = own.dtype == torch.float32 and others[0].dtype == torch.float64
            moves = [(other - others[0]).abs() for other in others[1:]] if known else []
            result.sensitivity.append(torch.stack(moves).amax(0) if moves else None)
        return result

    def _in_double(self, state: dict[str, torch.Tensor], inputs: Any, training: bool) -> list[torch.Tensor] | None:
        """The float64 module's outputs; None when it insists on its own precision."""
        try:
            _load(self.twin, state)
            model = copy.deepcopy(self.twin) if self.plain else self.twin
            return [tensor.clone() for tensor in trees.flatten(forward(model, inputs, training))[1]]
        except (RuntimeError, TypeError, ValueError):
            return None


def built(model: torch.nn.Module, init: list[Any]) -> Built:
    """What `expect` needs of a fresh module."""
    return Built(
        init=init,
        model=model,
        twin=_double_module(model),
        base={name: tensor.detach().clone() for name, tensor in _tensors_of(model)},
        plain=_plain_tensors(model),
    )


def is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def forward(model: torch.nn.Module, inputs: Any, training: bool) -> Any:
    model.train(training)
    args, kwargs = trees.copied(inputs)
    with torch.no_grad():
        return model(*args, **kwargs)


def _double_module(model: torch.nn.Module) -> torch.nn.Module:
    twin = copy.deepcopy(model).double()
    for module in twin.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    return twin


def _tensors_of(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _plain_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that a module holds as ordinary attributes: random ones must reach the candidate too."""
    found = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                found[f"{path}.{name}" if path else name] = value.detach().clone()
    return found


def _load(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _tensors_of(model):
            tensor.copy_(state[name])


def all_finite(expected: Expected) -> bool:
    parts = (*expected.native, *expected.exact)
    return all(bool(torch.isfinite(part).all()) for part in parts if is_inexact(part))


def odd_count(expected: Expected) -> int:
    return sum(int((~torch.isfinite(part)).sum()) for part in expected.native if is_inexact(part))
