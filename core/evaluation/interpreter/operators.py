"""The executor's aten operators: what the host asks for is run on real storages, counted, and fresh memory is poisoned.

Recording is by behaviour, not by text: whatever a candidate computes with torch, under any spelling, arrives here as
an operator. Memory from torch.empty is filled with NaN (or an odd number), so that what no kernel wrote can't be right
by accident.
"""

import functools
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.evaluation import aten_costs, link, values
from core.evaluation.interpreter.storages import BadReference, Storages, named_dtype, spoil

_POISONED = frozenset(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"))
_POISON_INTEGER = 113
_SCALAR_READS = frozenset(("_local_scalar_dense", "equal", "is_nonzero"))
_SHAPED_BY_VALUES = frozenset(("nonzero", "nonzero_numpy", "masked_select", "_unique2", "unique_dim", "_unique",
                               "unique_consecutive", "bincount", "_pack_padded_sequence", "_ctc_loss"))  # fmt: skip
"""Beside those that torch says it of (`_tags`)."""
_INDEXING = frozenset(("index", "_unsafe_index"))
"""Shaped by values where a mask is among the indices."""
_MASKS = (torch.bool, torch.uint8)
_REFUSED = frozenset(("from_file", "set_", "set", "save", "_cuda_getDefaultCudaGenerator", "_reshape_alias",
                      "_reshape_alias_copy"))  # fmt: skip
"""Files, foreign storages, and views that torch does not hold against the size of their storage."""
_NAMESPACES = frozenset(("aten", "prims"))
_MEMORY_FORMATS = {
    str(form).removeprefix("torch."): form
    for form in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format)
}


class Counts(msgspec.Struct, kw_only=True):
    """What torch did in one call."""

    operators: dict[str, list[int]] = {}
    """name -> [calls, bytes, flops, is compute]"""
    scalars_read: int = 0
    """Values that left torch for Python."""


def poison(tensor: torch.Tensor) -> None:
    """Fill fresh memory with values that no right answer is likely to hold."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.view(torch.uint8).fill_(1)
    else:
        tensor.fill_(_POISON_INTEGER)


def resolve(name: str) -> Any:
    """`aten::add.Tensor` as torch's operator; BadReference for what is not one of torch's own."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace not in _NAMESPACES or packet in _REFUSED:
        raise BadReference(f"operator {name} can't be run here")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except AttributeError:
        raise BadReference(f"there is no operator {name}") from None
    # Not a method of torch's own objects, and no operator of TorchScript, which work on Python's values.
    if not isinstance(found, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(found.name()):
        raise BadReference(f"there is no operator {name}")
    return found


class _Priced(TorchDispatchMode):
    """Counts the operators that a composite one is made of."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self._count = count

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._count(func, args, kwargs or {}, out)
        return out


@functools.cache
def _tags(func: Any) -> frozenset[Any]:
    """What torch says of an operator under any of its overloads: those with `out` lack most tags."""
    packet = func.overloadpacket
    return frozenset(tag for overload in packet.overloads() for tag in getattr(packet, overload).tags)


def _numbers_in(out: Any) -> int:
    """Python numbers in an answer, sizes of tensors apart."""
    if isinstance(out, (list, tuple)):
        return sum(map(_numbers_in, out))
    return int(isinstance(out, (bool, int, float, complex)))


def _values_told(func: Any, plain: str, args: Any, out: Any) -> int:
    """How many values an answer tells Python, in float32's: complex128 holds four of them.

    A number may be anything that was computed. A composite operator may read memory by itself (the positions of
    tensor_split), and each shape of several outputs may be a value.
    """
    tags = _tags(func)
    masked = plain in _INDEXING and any(mask.dtype in _MASKS for mask in aten_costs.tensors_in(args[1:]))
    if plain in _SHAPED_BY_VALUES or masked or (torch.Tag.dynamic_output_shape in tags and plain not in _INDEXING):
        return 1
    if plain in _SCALAR_READS or torch.Tag.data_dependent_output in tags:
        source = next(iter(aten_costs.tensors_in(args)), None)
        return 1 if source is None else max(1, source.element_size() // 4)
    several = len(aten_costs.tensors_in(out)) if aten_costs.is_composite(func) and isinstance(out, (list, tuple)) else 0
    return 2 * _numbers_in(out) + several


class Operators:
    """Runs operators on one set of storages."""

    def __init__(self, storages: Storages) -> None:
        self.storages = storages
        self.counts = Counts(operators={})
        self._resolved: dict[str, Any] = {}

    def decode(self, value: Any) -> Any:
        return link.decode(value, self.special)

    def special(self, value: list[Any]) -> Any:
        """A value of the kinds that `link` does not know: tensors first."""
        match value:
            case ["t", *_]:
                return self.storages.tensor(value)
            case ["h", name, sizes, strides, data]:
                count = values.extent(sizes, strides) * named_dtype(name).itemsize
                if len(data) != count:
                    raise BadReference(f"{len(data)} bytes for {count}")
                return values.from_bytes(data, named_dtype(name), sizes, strides)
            case ["y", name]:
                return named_dtype(name)
            case ["m", name]:
                return _MEMORY_FORMATS[name]
            case ["o", _]:
                return torch.strided
            case ["e"]:
                return torch.device("cpu")
        raise BadReference(f"a value of kind {value[0]!r}")

    def run(self, name: str, args: Any, kwargs: Any, numbers: list[int]) -> Any:
        """Run one operator; `numbers` are the storages that its new outputs get, when the host has chosen them.

        Returns what the operator returns. Raises whatever torch raises.
        """
        func = self._resolved.get(name)
        if func is None:
            func = self._resolved[name] = resolve(name)
        real_args, real_kwargs = self.decode(args), self.decode(kwargs)
        resized = aten_costs.tensors_in(real_args[:1]) if "resize" in aten_costs.operator_name(func) else []
        held = [tensor.untyped_storage().nbytes() for tensor in resized]
        try:
            if aten_costs.is_composite(func):
                with _Priced(self._count):  # by its parts: hosts send none, unless they mean to hide what it does
                    out = func(*real_args, **real_kwargs)
            else:
                out = func(*real_args, **real_kwargs)
        except Exception:
            self.counts.scalars_read += 1  # messages of errors tell values
            raise
        plain = self._count(func, real_args, real_kwargs, out)
        if plain in _POISONED and isinstance(out, torch.Tensor):
            poison(out)
        if held and isinstance(out, torch.Tensor):
            spoil(out.untyped_storage(), held[0])
        if numbers:
            for tensor, number in zip(aten_costs.tensors_in(out), numbers, strict=True):
                self.storages.adopt(tensor, number)
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> str:
        plain, moved, flops, compute = aten_costs.cost(func, args, kwargs, out)
        entry = self.counts.operators.setdefault(plain, [0, 0, 0, int(compute)])
        entry[0] += 1
        entry[1] += moved
        entry[2] += flops
        self.counts.scalars_read += _values_told(func, plain, args, out)
        return plain

    def answer(self, out: Any) -> Any:
        """An operator's result for the host: references and scalars."""

        def special(value: Any) -> list[Any] | None:
            if isinstance(value, torch.Tensor):
                return self.storages.ref(value)
            if isinstance(value, torch.dtype):
                return ["y", str(value).removeprefix("torch.")]
            return ["e"] if isinstance(value, torch.device) else None

        return link.encode(out, special)

    def take_counts(self) -> Counts:
        """The counts since the last time."""
        counts, self.counts = self.counts, Counts(operators={})
        return counts
