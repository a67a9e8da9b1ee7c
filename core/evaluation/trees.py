"""Nested Python values with tensors in them: what get_inputs() gives and what forward() returns.

Lists and tuples are the same nesting; everything here works on tensors of any device.
"""

from collections.abc import Callable
from typing import Any

import torch


def flatten(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """Nesting with tensors replaced by a mark, and the tensors in order. Lists and tuples are both a `sequence`; which
    one it was stands behind its parts, for people."""
    tensors: list[torch.Tensor] = []
    return _visited(value, tensors), tensors


def _visited(item: Any, tensors: list[torch.Tensor]) -> Any:
    # No closure: one that calls itself is a cycle, and its tensors would live until the collector runs.
    if isinstance(item, torch.Tensor):
        tensors.append(item.detach())
        return ["tensor"]
    if isinstance(item, (list, tuple)):
        parts = [_visited(part, tensors) for part in item]
        return ["sequence", parts, "list" if isinstance(item, list) else "tuple"]
    if isinstance(item, dict):
        return ["dict", {str(key): _visited(part, tensors) for key, part in item.items()}]
    return ["value", item if isinstance(item, (int, float, str, bool, type(None))) else repr(item)]


def mapped(
    value: Any, change: Callable[[torch.Tensor], torch.Tensor], scalar: Callable[[Any], Any] = lambda item: item
) -> Any:
    """The same nesting with every tensor changed, and every other leaf passed through `scalar`."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change, scalar) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(part, change, scalar) for part in value])
    if isinstance(value, dict):
        return {key: mapped(part, change, scalar) for key, part in value.items()}
    return scalar(value)


def copied(value: Any) -> Any:
    """Every tensor in new memory of the same layout."""
    return mapped(value, lambda x: x.clone() if x.is_contiguous() or overlaps(x) else with_strides(x, x))


def to_double(tensor: torch.Tensor) -> torch.Tensor:
    """Floating point and complex numbers in twice float32's width, others as they are; always new memory."""
    if tensor.is_complex():
        return tensor.to(torch.complex128, copy=True)
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def with_strides(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`values` in the dtype and memory layout of `like`: strided views stay strided, expanded dimensions expanded."""
    shape, stride = list(like.shape), list(like.stride())
    for dim, (size, step) in enumerate(zip(shape, stride, strict=True)):
        if step == 0 and size > 1:
            values = values.narrow(dim, 0, 1)
    held = torch.empty_strided(tuple(values.shape), tuple(stride), dtype=like.dtype, device=like.device)
    held.copy_(values)
    return held.expand(shape)


def overlaps(x: torch.Tensor) -> bool:
    """Whether two elements share memory otherwise than by an expanded dimension."""
    reach = 1
    for step, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if step and size > 1:
            if step < reach:
                return True
            reach = step * (size - 1) + reach
    return False
