"""`device_memory.Arena` for the CPU: one memory file that two processes map. Tests run the GPU stage on it."""

import ctypes
import mmap
import os
from typing import Any

import torch

from core.evaluation.gpu.device_memory import Arena, Spec, named_dtype


class HostArena:
    """One shared memory file, mapped in this process."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._descriptor = os.dup(descriptor)
        self._map = mmap.mmap(descriptor, nbytes)

    @staticmethod
    def create(nbytes: int) -> "HostArena":
        descriptor = os.memfd_create("arena", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(1, nbytes))
        arena = HostArena(descriptor, max(1, nbytes))
        os.close(descriptor)
        return arena

    def descriptor(self) -> int:
        return os.dup(self._descriptor)

    def tensor(self, spec: Spec) -> torch.Tensor:
        """The tensor at `spec`, in the arena's memory; raises ValueError outside of it."""
        nbytes = spec.nbytes
        if spec.offset < 0 or spec.offset + nbytes > self.nbytes:
            raise ValueError(f"{nbytes} bytes at {spec.offset} do not lie in an arena of {self.nbytes}")
        if not nbytes:
            return torch.empty(spec.shape, dtype=named_dtype(spec.dtype))
        memory = (ctypes.c_ubyte * nbytes).from_buffer(self._map, spec.offset)
        return torch.frombuffer(memory, dtype=named_dtype(spec.dtype)).as_strided(spec.shape, spec.stride)

    def close(self) -> None:
        """The file goes with the last descriptor and mapping; tensors keep theirs."""
        os.close(self._descriptor)


def create(device: str, nbytes: int) -> Any:
    """A new arena on `cpu`, `cuda` or `cuda:N`."""
    return HostArena.create(nbytes) if device == "cpu" else Arena.create(nbytes, torch.device(device).index or 0)


def attach(device: str, descriptor: int, nbytes: int) -> Any:
    """Another process's arena."""
    if device == "cpu":
        return HostArena(descriptor, nbytes)
    return Arena.attach(descriptor, nbytes, torch.device(device).index or 0)
