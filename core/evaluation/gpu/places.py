"""Where tensors lie in arenas, and nested values for the wire: tensors as places, everything else by value."""

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from core.evaluation.gpu import device_memory
from core.evaluation.gpu.device_memory import Spec
from core.tasks.format import TaskError


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor in a named arena."""

    arena: str
    spec: Spec

    def tree(self) -> list[Any]:
        spec = self.spec
        return ["tensor", self.arena, spec.offset, spec.dtype, list(spec.shape), list(spec.stride)]


def encode(value: Any, places: Iterator[Place]) -> Any:
    """A nested value; its tensors, in order, lie at `places`. Raises TaskError for what does not travel."""
    if isinstance(value, torch.Tensor):
        return next(places).tree()
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [encode(part, places) for part in value]]
    if isinstance(value, dict):
        return ["dict", [[encode(key, places), encode(part, places)] for key, part in value.items()]]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", value.type]
    if isinstance(value, range):
        return ["range", [value.start, value.stop, value.step]]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return ["value", value]
    raise TaskError(f"a {type(value).__name__} among inputs or constructor arguments does not travel to a candidate")


def decode(tree: Any, arenas: dict[str, Any], device: str) -> Any:
    """The value in a process that has mapped `arenas`; a device is that of the process."""
    kind, *body = tree
    match kind:
        case "tensor":
            name, offset, dtype, shape, stride = body
            return arenas[name].tensor(Spec(offset=offset, dtype=dtype, shape=tuple(shape), stride=tuple(stride)))
        case "list":
            return [decode(part, arenas, device) for part in body[0]]
        case "tuple":
            return tuple(decode(part, arenas, device) for part in body[0])
        case "dict":
            return {decode(key, arenas, device): decode(part, arenas, device) for key, part in body[0]}
        case "dtype":
            return device_memory.named_dtype(body[0])
        case "device":
            return torch.device(device if body[0] != "cpu" else "cpu")
        case "range":
            return range(*body[0])
        case "complex":
            return complex(*body[0])
        case _:
            return body[0]


def padded(tensors: list[torch.Tensor], pad: int) -> tuple[list[Spec], int]:
    """As `layout`, with `pad` bytes behind every tensor."""
    specs: list[Spec] = []
    end = 0
    for tensor in tensors:
        found, end = device_memory.layout([tensor], end)
        specs += found
        end += pad
    return specs, end
