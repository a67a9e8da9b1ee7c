"""Weights on their way into an engine: one call for every transport, chosen by the form of the source.

    /shared/run/weights/v000012     a folder (`core.weights.filesystem`)
    ipc:/dev/shm/run/v000012.ipc    memory of the same card (`core.weights.ipc`)
    nccl://host:port/12-1           a group formed for this hand-over (`core.weights.nccl`)
    adapter:/tmp/run/v000012.adapter   adapters alone, added to the model's own weights (`core.weights.adapters`)

The source is what the learner puts in its policy, so a run changes its transport without changing a message;
`core.weights.outgoing` is the learner's side.
Receiving happens beside generation and leaves the engine's weights alone; what was received is complete and stays
unchanged until it is released.
"""

import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from core.weights.received import Received
from core.weights.shards import iterate_tensors


class Holds(Protocol):
    """Memory to copy incoming tensors to."""

    def hold(self, tensors: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]: ...


class HostBuffer:
    """Page-locked memory that is kept from one update to the next: a card reads it at full speed while the engine is
    paused, and locking pages (a third of a second per GB) is done once."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def hold(self, tensors: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Copies of `tensors` in page-locked memory, valid until the next call."""
        aligned = [(name, tensor, -(-tensor.numel() * tensor.element_size() // 256) * 256) for name, tensor in tensors]
        buffer = self._room(sum(size for _, _, size in aligned))
        held, at = [], 0
        for name, tensor, size in aligned:
            place = buffer[at : at + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
            held.append((name, place.copy_(tensor)))
            at += size
        return held

    def _room(self, size: int) -> Tensor:
        if self._buffer is None or self._buffer.numel() < size:
            self.free()
            # The host's caching allocator would round up to a power of two.
            self._buffer = torch.empty(size, dtype=torch.uint8)
            _check(torch.cuda.cudart().cudaHostRegister(self._buffer.data_ptr(), size, 0), f"locking {size} bytes")
        return self._buffer

    def free(self) -> None:
        if self._buffer is not None:
            _check(torch.cuda.cudart().cudaHostUnregister(self._buffer.data_ptr()), "unlocking memory")
            self._buffer = None


def _check(code: Any, what: str) -> None:
    if int(code):
        raise RuntimeError(f"CUDA error {int(code)} while {what} for incoming weights")


def receive(
    source: str, *, device: torch.device, timeout_s: float, host: Holds | None = None, base: str = ""
) -> Received:
    """All tensors of `source`; `base` is the model's folder, which adapters are added to. Raises FileNotFoundError when
    the version is gone, TimeoutError, ValueError for a source that can't be read here."""
    deadline = time.monotonic() + timeout_s
    if source.startswith("ipc:"):
        from core.weights import ipc

        return ipc.receive(source.removeprefix("ipc:"), device=device, timeout_s=timeout_s)
    if source.startswith("nccl://"):
        from core.weights import nccl

        received = nccl.receive(source, device=device, timeout_s=timeout_s)
    elif source.startswith("adapter:"):
        from core.weights import adapters

        received = adapters.receive(source.removeprefix("adapter:"), base=base, device=device)
    else:
        received = Received(list(iterate_tensors(Path(source))))
    if device.type == "cuda" and any(not tensor.is_cuda for _, tensor in received.tensors):
        held = (host or HostBuffer()).hold(received.tensors)
        received.release()
        received = Received(held)
    if time.monotonic() > deadline:
        raise TimeoutError(f"weights from {source} took more than {timeout_s:g} s")
    return received
