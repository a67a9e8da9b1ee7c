"""Launches remembered by everything that they depend on, so that calls which are made again cost next to nothing.

A kernel's stores follow from its source, its arguments and the bytes of the storages that its pointers reach. When all
of these are as they were, the stores are too, and are copied instead of interpreted. Recalling is switched on for the
calls at the end that only look for differences; counts and race checks belong to the calls before.
"""

import hashlib
from typing import Any

import msgspec
import numpy as np
import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from core.evaluation.interpreter import engine as interpreter
from core.evaluation.interpreter.tracing import Region

MAX_BYTES = 256 * 2**20


class LaunchMemory:
    """Runs launches, and keeps what they stored."""

    def __init__(self) -> None:
        self.recalls = False
        self._stores: dict[bytes, list[tuple[int, int, np.ndarray, np.ndarray]]] = {}
        """digest -> (place of the storage among the arguments', element size, mask of elements, their bytes)"""
        self._held_bytes = 0

    def execute(
        self, key: str, kernel: Any, encoded: dict[str, Any], arguments: dict[str, Any], grid: list[int]
    ) -> list[Region]:
        """As `interpreter.execute`; recalled launches answer with no regions."""
        storages = _storages(arguments)
        digest = _digest(key, encoded, grid, storages)
        known = self._stores.get(digest) if self.recalls else None
        if known is not None:
            for place, itemsize, mask, data in known:
                elements = _bytes_of(storages[place])[: mask.size * itemsize].reshape(mask.size, itemsize)
                elements[mask] = data
            return []
        written = interpreter.execute(key, kernel, arguments, grid)
        places = {storage._cdata: place for place, storage in enumerate(storages)}
        stores = []
        for region in written:
            whole = region.nbytes // region.itemsize
            mask = region.writer[:whole] != 0
            data = _bytes_of(region.storage)[: whole * region.itemsize].reshape(whole, region.itemsize)[mask]
            stores.append((places[region.storage._cdata], region.itemsize, mask, data))
            self._held_bytes += mask.nbytes + data.nbytes
        if self._held_bytes < MAX_BYTES:
            self._stores[digest] = stores
        return written


def _bytes_of(storage: torch.UntypedStorage) -> np.ndarray:
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).numpy()


def _storages(arguments: dict[str, Any]) -> list[torch.UntypedStorage]:
    """Storages behind the arguments, each once, in order."""
    found: dict[int, torch.UntypedStorage] = {}

    def visit(value: Any) -> None:
        if isinstance(value, (TensorWrapper, TensorDescriptor)):
            value = value.base
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found.setdefault(storage._cdata, storage)
        elif isinstance(value, (tuple, list)):
            for part in value:
                visit(part)

    for value in arguments.values():
        visit(value)
    return list(found.values())


def _digest(key: str, encoded: dict[str, Any], grid: list[int], storages: list[torch.UntypedStorage]) -> bytes:
    """Storages' numbers are replaced by their place: new memory with old bytes counts as the same."""
    places: dict[int, int] = {}

    def visit(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if value and value[0] == "t":
            return ["t", places.setdefault(value[1], len(places)), *value[2:]]
        return [visit(part) for part in value]

    plain = [[name, visit(value)] for name, value in encoded.items()]
    digest = hashlib.blake2b(msgspec.msgpack.encode([key, plain, grid]), digest_size=32)
    for storage in storages:
        digest.update(storage.nbytes().to_bytes(8, "little"))
        digest.update(_bytes_of(storage).data)
    return digest.digest()
