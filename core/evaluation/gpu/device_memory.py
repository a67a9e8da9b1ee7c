"""Device memory that two processes share, one allocation at a time, handed over as a file descriptor.

CUDA's ordinary IPC handle maps the whole allocator segment that a pointer lies in (other tensors of the parent were
read that way) and looks for its owner in the same PID namespace. An `Arena` is one allocation of the driver's virtual
memory interface that holds nothing else: who has its descriptor can map exactly these bytes, from any namespace.

Both sides write to it; nothing private may lie in it. The process that uses an Arena has a CUDA context that is current
in the calling thread (torch.cuda makes one with the first tensor). Driver errors raise `DriverError`.
"""

import ctypes
import math
from functools import cache
from typing import Any

import msgspec
import torch

ALIGNMENT = 512
"""Bytes between the starts of tensors: what torch's own allocator gives, so kernels specialise alike."""


class DriverError(RuntimeError):
    """A call of the CUDA driver failed: which one, and its word for why."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_PINNED, _DEVICE, _DESCRIPTOR, _READ_WRITE = 1, 1, 1, 3


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    """One call of the driver; raises DriverError unless it answers 0."""
    status = getattr(_driver(), name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(text))
        raise DriverError(f"{name}: {(text.value or b'?').decode()} ({status})")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies in an arena."""

    offset: int
    dtype: str
    """Without `torch.`"""
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """From the first element to behind the last."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * named_dtype(self.dtype).itemsize


def named_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")
    return found


def layout(tensors: list[torch.Tensor], start: int = 0) -> tuple[list[Spec], int]:
    """Where the tensors go, one behind the other from `start` on, and where the last one ends (aligned)."""
    specs = []
    for tensor in tensors:
        dtype = str(tensor.dtype).removeprefix("torch.")
        spec = Spec(offset=start, dtype=dtype, shape=tuple(tensor.shape), stride=tuple(tensor.stride()))
        specs.append(spec)
        start += math.ceil(spec.nbytes / ALIGNMENT) * ALIGNMENT
    return specs, start


class _Bytes:
    """What torch takes as memory of somebody else."""

    def __init__(self, pointer: int, nbytes: int, owner: "Arena") -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


class Arena:
    """One shared allocation, mapped in this process until `close`."""

    def __init__(self, handle: int, nbytes: int, device: int) -> None:
        self.nbytes, self.device = nbytes, device
        self._handle = handle
        pointer = ctypes.c_uint64()
        size, none = ctypes.c_size_t(nbytes), ctypes.c_uint64(0)
        call("cuMemAddressReserve", ctypes.byref(pointer), size, ctypes.c_size_t(0), none, none)
        self.pointer = int(pointer.value)
        call("cuMemMap", pointer, size, ctypes.c_size_t(0), ctypes.c_uint64(handle), none)
        access = _Access(_Location(_DEVICE, device), _READ_WRITE)
        call("cuMemSetAccess", pointer, size, ctypes.byref(access), ctypes.c_size_t(1))

    @staticmethod
    def create(nbytes: int, device: int = 0) -> "Arena":
        """A new allocation of at least `nbytes`."""
        properties = _Properties(_PINNED, _DESCRIPTOR, _Location(_DEVICE, device))
        unit, handle = ctypes.c_size_t(), ctypes.c_uint64()
        call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(properties), 0)
        rounded = max(1, math.ceil(nbytes / unit.value)) * unit.value
        size = ctypes.c_size_t(rounded)
        call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
        return Arena(int(handle.value), rounded, device)

    @staticmethod
    def attach(descriptor: int, nbytes: int, device: int = 0) -> "Arena":
        """The other process's arena; `nbytes` is its `nbytes`. The descriptor may be closed afterwards."""
        handle = ctypes.c_uint64()
        number = ctypes.c_void_p(descriptor)
        call("cuMemImportFromShareableHandle", ctypes.byref(handle), number, _DESCRIPTOR)
        return Arena(int(handle.value), nbytes, device)

    def descriptor(self) -> int:
        """A new file descriptor for this allocation; the caller closes it."""
        number = ctypes.c_int(-1)
        handle, none = ctypes.c_uint64(self._handle), ctypes.c_uint64(0)
        call("cuMemExportToShareableHandle", ctypes.byref(number), handle, _DESCRIPTOR, none)
        return int(number.value)

    def tensor(self, spec: Spec) -> torch.Tensor:
        """The tensor at `spec`, in the arena's memory, with a storage of its own; raises ValueError outside of it."""
        nbytes = spec.nbytes
        if spec.offset < 0 or spec.offset + nbytes > self.nbytes:
            raise ValueError(f"{nbytes} bytes at {spec.offset} do not lie in an arena of {self.nbytes}")
        if not nbytes:
            return torch.empty(spec.shape, dtype=named_dtype(spec.dtype), device=f"cuda:{self.device}")
        memory = _Bytes(self.pointer + spec.offset, nbytes, self)
        flat = torch.as_tensor(memory, device=f"cuda:{self.device}").view(named_dtype(spec.dtype))
        return flat.as_strided(spec.shape, spec.stride)

    def close(self) -> None:
        """Unmap and release; tensors made of it must not be used any more.

        What was launched on them may still wait on the device, behind others' work: it is waited for, since a kernel
        that finds its memory gone costs this process its context.
        """
        if self.pointer:
            call("cuCtxSynchronize")
            pointer, size = ctypes.c_uint64(self.pointer), ctypes.c_size_t(self.nbytes)
            call("cuMemUnmap", pointer, size)
            call("cuMemAddressFree", pointer, size)
            call("cuMemRelease", ctypes.c_uint64(self._handle))
            self.pointer = 0
