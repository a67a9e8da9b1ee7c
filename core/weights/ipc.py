"""Weights on one card: the learner's buffer is mapped into the engine's process, nothing is sent.

    learner   Publisher.publish(version, tensors) ─▶ one of two flat buffers on the card ─▶ v000012.ipc names it
    engine    receive(path): shared lock on the buffer ─▶ map it ─▶ views of it, until released

The file holds plain numbers and the driver's handles (MessagePack, no pickle). An engine reads under a shared lock,
which ends with its process; the learner overwrites a buffer only under the exclusive lock, within a deadline, and first
removes the versions that named it. So what an engine sees never changes under it.
"""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from core.weights.filesystem import Manifest
from core.weights.fingerprint import Fingerprint
from core.weights.received import Received

_ALIGN = 256
_POLL_S = 0.005


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """A published version: where its buffer is, and what is in it."""

    version: int
    fingerprint: str
    slot: int
    card: str
    """UUID of the card that holds the buffer."""
    storage: list[Any]
    """Arguments of torch's shared CUDA storage, without the device's number, which differs between processes."""
    storage_offset: int
    """Bytes from the storage's start to the buffer's."""
    names: list[str]
    shapes: list[list[int]]
    dtypes: list[str]
    offsets: list[int]
    """Bytes from the buffer's start to each tensor's."""


def card_of(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


@contextlib.contextmanager
def _locked(path: Path, kind: int, timeout_s: float) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} was held by another process for {timeout_s:g} s") from None
                time.sleep(_POLL_S)
        yield handle
    finally:
        os.close(handle)  # gives the lock back


class Publisher:
    """The learner's side: two buffers on its card, written in turn."""

    def __init__(self, folder: str | Path, *, device: torch.device, timeout_s: float = 60.0) -> None:
        """`folder` is on this host, best in memory; engines on the same card read it."""
        self._folder, self._device, self._timeout_s = Path(folder), device, timeout_s
        self._folder.mkdir(parents=True, exist_ok=True)
        self._buffers: list[Tensor | None] = [None, None]
        self._handles: list[list[Any]] = [[], []]
        self._offsets = [0, 0]
        self._next = 0

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> tuple[str, Manifest]:
        """Copy `tensors` (each once, full, any device) into a buffer that no engine reads, and name it. Returns the
        source for `core.weights.incoming.receive` and the manifest. Raises TimeoutError when an engine holds the buffer
        for longer than the deadline."""
        whole = list(tensors)
        slot, self._next = self._next, 1 - self._next
        offsets, size = [], 0
        for _, tensor in whole:
            offsets.append(size)
            size += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        with _locked(self._folder / f"buffer{slot}.lock", fcntl.LOCK_EX, self._timeout_s):
            for path in self._folder.glob("v*.ipc"):
                if msgspec.msgpack.decode(path.read_bytes(), type=Handle).slot == slot:
                    path.unlink()
            buffer = self._room(slot, size)
            seal = Fingerprint()
            for (name, tensor), at in zip(whole, offsets, strict=True):
                place = _view(buffer, at, tensor.dtype, list(tensor.shape))
                seal.add(name, place.copy_(tensor))
            torch.cuda.current_stream(self._device).synchronize()  # alone: a step may run beside it
            handle = Handle(
                version=version, fingerprint=seal.hexdigest(), slot=slot, card=card_of(self._device),
                storage=self._handles[slot], storage_offset=self._offsets[slot],
                names=[name for name, _ in whole], shapes=[list(t.shape) for _, t in whole],
                dtypes=[str(t.dtype).removeprefix("torch.") for _, t in whole], offsets=offsets,
            )  # fmt: skip
            path = self._folder / f"v{version:06d}.ipc"
            aside = path.with_suffix(".new")
            aside.write_bytes(msgspec.msgpack.encode(handle))
            os.replace(aside, path)
        manifest = Manifest(
            version=version, fingerprint=handle.fingerprint, dtype="+".join(sorted(set(handle.dtypes))),
            tensors=len(whole), bytes=sum(t.numel() * t.element_size() for _, t in whole), files=(),
        )  # fmt: skip
        return f"ipc:{path}", manifest

    def _room(self, slot: int, size: int) -> Tensor:
        buffer = self._buffers[slot]
        if buffer is None or buffer.numel() < size:
            self._buffers[slot] = None
            buffer = self._buffers[slot] = torch.empty(size, dtype=torch.uint8, device=self._device)
            _, *shared = buffer.untyped_storage()._share_cuda_()
            self._handles[slot] = shared
            self._offsets[slot] = int(buffer.storage_offset())
        return buffer


def receive(path: str, *, device: torch.device, timeout_s: float) -> Received:
    """Views of the learner's buffer. Raises FileNotFoundError when the version is gone, ValueError on another card or
    host."""
    if not Path(path).parent.is_dir():
        raise ValueError(
            f"weights {path} are not on host {socket.gethostname()}: CUDA IPC works on one card of one host, use the "
            f"filesystem or NCCL"
        )
    handle = msgspec.msgpack.decode(Path(path).read_bytes(), type=Handle)
    if device.type != "cuda" or card_of(device) != handle.card:
        raise ValueError(
            f"weights {path} are in the memory of card {handle.card}, the engine runs on {device}: CUDA IPC works on "
            f"one card, use the filesystem or NCCL"
        )
    lock = contextlib.ExitStack()
    lock.enter_context(_locked(Path(path).parent / f"buffer{handle.slot}.lock", fcntl.LOCK_SH, timeout_s))
    try:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} was replaced")
        index = device.index if device.index is not None else torch.cuda.current_device()
        storage = torch.UntypedStorage._new_shared_cuda(index, *handle.storage)
        size = storage.nbytes() - handle.storage_offset
        buffer = torch.empty(0, dtype=torch.uint8, device=device)
        buffer.set_(storage, handle.storage_offset, (size,))  # type: ignore[call-overload]
        tensors = [
            (name, _view(buffer, at, getattr(torch, dtype), shape))
            for name, shape, dtype, at in zip(handle.names, handle.shapes, handle.dtypes, handle.offsets, strict=True)
        ]
    except BaseException:
        lock.close()
        raise
    return Received(tensors, lock.close)


def _view(buffer: Tensor, at: int, dtype: torch.dtype, shape: list[int]) -> Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    return buffer[at : at + size].view(dtype).view(shape)
