"""How much the reference does at given sizes, operator by operator: the eager baseline of the speed model.

Counted on the meta device from shapes alone where the module allows that, so that full sizes cost nothing.
"""

from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.evaluation import aten_costs
from core.tasks import format


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the reference does at one profile."""

    operators: tuple[tuple[str, int, int], ...]
    """(name, bytes, flops) of every operator that is not free."""
    compulsory_bytes: int
    """Inputs, parameters and outputs, each once: no implementation moves less."""
    dot_flops: int
    other_flops: int


class Counted(msgspec.Struct, kw_only=True):
    """One run for its shapes."""

    work: Work
    inputs: list[tuple[int, ...]]
    """Shapes of the input tensors."""
    outputs: list[tuple[int, ...]]
    state: list[tuple[int, ...]]
    """Shapes of parameters and buffers."""
    init: str
    """The constructor's arguments as text."""


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


def args_and_kwargs(value: Any, name: str) -> list[Any]:
    """KernelBench's `[args...]` and KernelBook's `[[args...], {kwargs}]` as [args, kwargs]."""
    args, kwargs = format.init_inputs(value, name)
    return [list(args), kwargs]


def held_bytes(namespace: dict[str, Any], name: str) -> int:
    """Bytes of a module's parameters and inputs, from shapes alone; raises what the task's code raises."""
    with torch.device("meta"):
        init = args_and_kwargs(namespace["get_init_inputs"](), name)
        model = namespace["Model"](*init[0], **init[1])
        given = aten_costs.tensors_in(args_and_kwargs(namespace["get_inputs"](), name))
    return sum(tensor.numel() * tensor.element_size() for tensor in (*given, *model.parameters(), *model.buffers()))


def count(namespace: dict[str, Any], name: str, device: str) -> Counted:
    """Run the module of a namespace once on `device` (`meta` or `cpu`); raises what the task's code raises."""
    with torch.device(device):
        init = args_and_kwargs(namespace["get_init_inputs"](), name)
        text = repr(init)
        model = namespace["Model"](*init[0], **init[1])
        args, kwargs = args_and_kwargs(namespace["get_inputs"](), name)
        given = [tuple(tensor.shape) for tensor in aten_costs.tensors_in([args, kwargs])]
        model.eval()
        counter = Counter()
        with torch.no_grad(), counter:
            out = model(*args, **kwargs)
    held = [*model.parameters(), *model.buffers()]
    moved = aten_costs.tensors_in([args, kwargs]) + held + aten_costs.tensors_in(out)
    work = Work(
        operators=tuple(counter.operators),
        compulsory_bytes=sum(tensor.numel() * tensor.element_size() for tensor in moved),
        dot_flops=counter.dot_flops,
        other_flops=counter.other_flops,
    )
    return Counted(
        work=work,
        inputs=given,
        outputs=[tuple(tensor.shape) for tensor in aten_costs.tensors_in(out)],
        state=[tuple(tensor.shape) for tensor in held],
        init=text,
    )
