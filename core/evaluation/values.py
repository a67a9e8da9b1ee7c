"""Python values with tensors in them, as bytes: what the trusted side and the candidate's process hand each other.

A value becomes a small MessagePack tree plus the raw bytes of its tensors; nothing is pickled, so reading what a
candidate sent can't run anything. Tensors keep dtype, shape and strides; a tensor's bytes are those of the smallest
storage that holds it.

    header, blobs = encode({"x": torch.zeros(2)})
    decode(header, memoryview(b"".join(blobs)))      # {"x": tensor([0., 0.])}
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip


_address = torch._C.TensorBase.data_ptr
"""The truth; a host pretends `tensor.data_ptr()`."""


class NotPlainError(TypeError):
    """A value that does not travel: not a number, string, container or plain dense tensor."""


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor's bytes are and how to read them."""

    dtype: str
    shape: list[int]
    stride: list[int]
    start: int
    nbytes: int


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of the smallest storage that holds such a view."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a dense CPU tensor's extent in its storage, read at its address."""
    count = extent(tensor.shape, tensor.stride()) * tensor.element_size()
    return ctypes.string_at(_address(tensor), count) if count else b""


def from_bytes(data: Any, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A new tensor in a storage of its own, exactly as large as `data`."""
    tensor = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype)
    overwrite(tensor, data)
    return tensor


def overwrite(tensor: torch.Tensor, data: Any) -> None:
    """Put other bytes into the tensor's extent, behind torch's back (no version bump)."""
    if len(data):
        ctypes.memmove(_address(tensor), bytes(data), len(data))


def encode(value: Any, start: int = 0) -> tuple[Any, list[bytes]]:
    """The tree and the tensors' bytes, which will lie from byte `start` on; NotPlainError names what can't travel."""
    blobs: list[bytes] = []
    position = start

    def visit(item: Any) -> Any:
        nonlocal position
        if item is None or isinstance(item, (bool, float, str, bytes)):
            return ["v", item]
        if isinstance(item, int):
            return ["v", item] if -(2**63) <= item < 2**63 else ["i", str(item)]
        if isinstance(item, torch.Tensor):
            name = str(item.dtype).removeprefix("torch.")
            if item.layout != torch.strided or name not in DTYPES or item.device.type != "cpu":
                raise NotPlainError(f"a {item.layout} tensor of {item.dtype} on {item.device}")
            item = item.detach().resolve_conj().resolve_neg()
            data = raw_bytes(item)
            leaf = Leaf(name, list(item.shape), list(item.stride()), position, len(data))
            blobs.append(data)
            position += len(data)
            return ["t", msgspec.to_builtins(leaf)]
        if isinstance(item, (list, tuple)):
            return ["l" if isinstance(item, list) else "u", [visit(part) for part in item]]
        if isinstance(item, dict):
            return ["d", [[visit(key), visit(part)] for key, part in item.items()]]
        if isinstance(item, torch.dtype):
            return ["y", str(item).removeprefix("torch.")]
        if isinstance(item, torch.device):
            return ["e", str(item)]
        if isinstance(item, complex):
            return ["c", [item.real, item.imag]]
        if isinstance(item, range):
            return ["r", [item.start, item.stop, item.step]]
        raise NotPlainError(f"a {type(item).__module__}.{type(item).__qualname__}")

    return visit(value), blobs


def decode(tree: Any, data: memoryview) -> Any:
    """The value; raises ValueError when the tree and the bytes don't belong together."""
    kind, body = tree
    match kind:
        case "v":
            return body
        case "i":
            return int(body)
        case "t":
            leaf = msgspec.convert(body, Leaf)
            dtype = DTYPES[leaf.dtype]
            if len(leaf.shape) != len(leaf.stride) or min([0, *leaf.shape, *leaf.stride]) < 0:
                raise ValueError(f"impossible tensor: shape {leaf.shape}, strides {leaf.stride}")
            if leaf.start < 0 or leaf.start + leaf.nbytes > len(data):
                raise ValueError(f"tensor bytes {leaf.start}+{leaf.nbytes} outside of {len(data)}")
            if leaf.nbytes != extent(leaf.shape, leaf.stride) * dtype.itemsize:
                raise ValueError(f"{leaf.nbytes} bytes for shape {leaf.shape} of {leaf.dtype}")
            return from_bytes(data[leaf.start : leaf.start + leaf.nbytes], dtype, leaf.shape, leaf.stride)
        case "l":
            return [decode(part, data) for part in body]
        case "u":
            return tuple(decode(part, data) for part in body)
        case "d":
            return {decode(key, data): decode(part, data) for key, part in body}
        case "y":
            return getattr(torch, body)
        case "e":
            return torch.device(body)
        case "c":
            return complex(*body)
        case "r":
            return range(*body)
    raise ValueError(f"unknown kind of value {kind!r}")


def leaves(tree: Any) -> list[Leaf]:
    """The tensors of a tree in order."""
    kind, body = tree
    if kind == "t":
        return [msgspec.convert(body, Leaf)]
    if kind in ("l", "u"):
        return [leaf for part in body for leaf in leaves(part)]
    if kind == "d":
        return [leaf for pair in body for leaf in leaves(pair[1])]
    return []


def same(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether two outputs of equal calls are the same, up to the order of torch's own sums, which may follow the
    alignment of memory. Types and shapes are the same."""
    if not new.is_floating_point():
        return bool(torch.equal(new, old))
    close = 4 * torch.finfo(new.dtype).eps * float(old.nan_to_num().abs().max()) if old.numel() else 0.0
    return bool(torch.allclose(new, old, rtol=0.0, atol=close, equal_nan=True))
