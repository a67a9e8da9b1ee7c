"""The executor's memory: every storage that a candidate's tensors refer to, by number.

A reference from the host is a claim: [storage, dtype, sizes, strides, offset]. It is checked against the storage's size
before it becomes a tensor, so that no view reaches beyond its storage. Storages of the host's own making have even
numbers, those that came out of operators odd ones.
"""

from typing import Any

import torch

from core.evaluation import values

Ref = list[Any]
"""["t", storage, dtype, sizes, strides, offset]"""


class BadReference(ValueError):
    """A reference that no honest host sends."""


def named_dtype(name: str) -> torch.dtype:
    dtype = values.DTYPES.get(name)
    if dtype is None:
        raise BadReference(f"dtype {name}")
    return dtype


def spoil(storage: torch.UntypedStorage, start: int) -> None:
    """Garbage from byte `start` on, which nobody has written: NaN for every floating-point type, -1 for integers."""
    count = storage.nbytes() - start
    if count > 0:
        torch.empty(0, dtype=torch.uint8).set_(storage, start, (count,), (1,)).fill_(0xFF)


class Storages:
    """number -> storage, and back."""

    def __init__(self) -> None:
        self._held: dict[int, torch.UntypedStorage] = {}
        self._numbers: dict[int, int] = {}
        self._next = 1

    def adopt(self, tensor: torch.Tensor, number: int | None = None) -> int:
        """The number of the storage behind a tensor of ours; a new number, or `number`, if it has none."""
        storage = tensor.untyped_storage()
        known = self._numbers.get(storage._cdata)
        if known is not None and number is None:
            return known
        if number is None:
            number, self._next = self._next, self._next + 2
        elif known is not None or type(number) is not int or number in self._held or number % 2:
            # One storage under two numbers would be two storages when a call is replayed.
            raise BadReference(f"storage {number} is taken, or the tensor has one already")
        self._held[number] = storage
        self._numbers[storage._cdata] = number
        return number

    def ref(self, tensor: torch.Tensor) -> Ref:
        """How the host may speak of a tensor."""
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != torch.strided or name not in values.DTYPES:
            raise TypeError(f"a {tensor.layout} tensor of {tensor.dtype}")
        tensor = tensor.resolve_conj().resolve_neg()
        number = self.adopt(tensor)
        return ["t", number, name, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The tensor that a reference names; BadReference when it leaves its storage."""
        _, number, name, sizes, strides, offset = ref
        storage = self._held.get(number)
        if storage is None:
            raise BadReference(f"storage {number} does not exist")
        dtype = named_dtype(name)
        if len(sizes) != len(strides) or min([offset, *sizes, *strides], default=0) < 0:
            raise BadReference(f"sizes {sizes}, strides {strides}, offset {offset}")
        if (offset + values.extent(sizes, strides)) * dtype.itemsize > storage.nbytes():
            raise BadReference(f"sizes {sizes} with strides {strides} go beyond their storage")
        return torch.empty(0, dtype=dtype).set_(storage, offset, tuple(sizes), tuple(strides))

    def number_at(self, storage: torch.UntypedStorage) -> int:
        """The number of a storage that is held."""
        return self._numbers[storage._cdata]

    def replace(self, number: int, tensor: torch.Tensor) -> None:
        """Hold the tensor's storage under a number that may be taken."""
        self._held[number] = tensor.untyped_storage()

    def bytes_of(self, number: int) -> torch.Tensor:
        """A storage as a tensor of bytes, [bytes], uint8."""
        storage = self._held[number]
        return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))

    def grow(self, number: int, nbytes: int) -> None:
        storage = self._held.get(number)
        if storage is None:
            raise BadReference(f"storage {number} does not exist")
        before = storage.nbytes()
        if nbytes > before:
            storage.resize_(nbytes)
            spoil(storage, before)

    def free(self, numbers: list[int]) -> None:
        for number in numbers:
            storage = self._held.pop(number, None)
            if storage is not None:
                self._numbers.pop(storage._cdata, None)

    def copy(self) -> "Storages":
        """The same numbers over copies of the bytes: for replaying a call."""
        twin = Storages()
        twin._next = self._next
        for number, storage in self._held.items():
            copied = storage.clone()
            twin._held[number] = copied
            twin._numbers[copied._cdata] = number
        return twin
