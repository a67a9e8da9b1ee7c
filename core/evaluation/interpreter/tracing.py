"""What a launch touches: regions of storages, which program read or wrote which element, bytes, sectors and operations.

Pointers of interpreted kernels are positions in regions (`engine`); `TRACER` is the process's one book of them. What it
refuses raises here, with the kernel's own words.
"""

import math
from typing import Any

import numpy as np
from triton.runtime import interpreter

_REGION_BITS = 40
_MIDDLE = 1 << (_REGION_BITS - 1)
SECTOR_BYTES = 32
"""What a GPU moves at least per access."""
_MANY = -1


class OutOfBoundsError(IndexError):
    """A kernel's access outside the tensor that the pointer belongs to."""


class RaceError(RuntimeError):
    """Two programs of one launch touch the same element in an order that a GPU does not keep."""


class IllegalKernelError(TypeError):
    """A kernel uses what Triton's language does not have."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


class OutOfTime(Exception):
    """A launch takes longer than its call may."""


class UnsupportedError(NotImplementedError):
    """Right or wrong can't be told here."""


class Region:
    """One storage as kernels see it."""

    def __init__(self, index: int, name: str, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        self.name, self.address, self.nbytes = name, storage.data_ptr(), storage.nbytes()
        self.itemsize, self.storage, self.index = tensor.element_size(), storage, index
        self.base = (index << _REGION_BITS) + _MIDDLE + (self.address & 63)
        elements = -(-self.nbytes // self.itemsize)
        self.reader = np.zeros(elements, dtype=np.int32)
        """Program (from 1) that read an element; -1 for several."""
        self.writer = np.zeros(elements, dtype=np.int32)
        """Program that wrote it last."""
        self.written_at: np.ndarray | None = None
        """Tick of that store, where the launch had an atomic before it; -1 for an atomic."""
        self.stored = False

    def sectors(self, touched: np.ndarray) -> int:
        """Memory sectors with a touched element."""
        per = max(1, SECTOR_BYTES // self.itemsize)
        padded = np.zeros(-(-touched.size // per) * per, dtype=bool)
        padded[: touched.size] = touched != 0
        return int(padded.reshape(-1, per).any(axis=1).sum()) * max(1, self.itemsize // SECTOR_BYTES)


class Kernel:
    """What is known of one kernel function over all of its launches."""

    def __init__(self, name: str, line: int) -> None:
        self.name, self.line = name, line
        self.launches = 0
        self.programs = 0
        self.sector_bytes = 0
        """Different memory that launches touched, in whole sectors: what must come from DRAM at least."""
        self.traffic_bytes = 0
        """What all accesses together asked for: caches serve the part above `sector_bytes`."""
        self.flops = 0
        self.dot_flops = 0


class Tracer:
    """State of the running launch, and counts of all; one per process."""

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}
        self.regions: dict[int, Region] = {}
        self.by_storage: dict[int, Region] = {}
        self.current: Kernel | None = None
        self.program = 1
        self.until = math.inf
        """When (monotonic) a launch is given up with OutOfTime."""
        self.tick = 0
        """Atomics of this launch so far."""
        self.released: dict[int, int] = {}
        """Program -> tick of its last atomic. What it did before is ordered for programs that had one of their own
        since; which place an atomic was on is not looked at."""

    def region_of(self, tensor: Any, name: str) -> Region:
        key = tensor.untyped_storage().data_ptr()
        region = self.by_storage.get(key)
        if region is None:
            index = len(self.regions) + 1
            region = self.regions[index] = self.by_storage[key] = Region(index, name, tensor)
        return region

    def real_pointers(
        self, pointers: np.ndarray, mask: np.ndarray, itemsize: int, store: bool, load: bool, value: Any = None
    ) -> np.ndarray:
        """Checked machine addresses for the active lanes; counts the access.

        `value` is what a plain store writes, None for loads and atomics.
        """
        lanes = mask if mask.shape == pointers.shape else np.broadcast_to(mask, pointers.shape)
        active = pointers[lanes]
        if active.size == 0:
            return pointers
        region = self.regions.get(int(active.flat[0]) >> _REGION_BITS)
        if region is None:
            raise OutOfBoundsError(f"{'tl.store' if store else 'tl.load'} through a pointer that belongs to no tensor")
        offsets = active.view(np.int64) - region.base
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high + itemsize > region.nbytes:
            indices = active >> np.uint64(_REGION_BITS)
            if (indices != indices.flat[0]).any():
                return self._over_regions(pointers, lanes, indices, itemsize, store, load, value)
            self._refuse(region, low if low < 0 else high, itemsize, store)
        span = high - low + itemsize
        whole = span == active.size * itemsize and itemsize == region.itemsize and low % itemsize == 0
        where: Any = slice(low // itemsize, high // itemsize + 1) if whole else offsets // region.itemsize
        if itemsize > region.itemsize:  # the storage was first seen through a smaller type
            where = where[..., None] + np.arange(itemsize // region.itemsize)
        atomic = store and load
        if atomic:
            self.tick += 1
            self.released[self.program] = self.tick
            region.reader[where] = region.writer[where] = self.program
            if region.written_at is not None:
                region.written_at[where] = -1
            region.stored = True
        elif store:
            self._note_store(region, where, offsets, itemsize, value, lanes)
        else:
            self._note_load(region, where)
        kernel = self.current
        if kernel is not None:
            asked = min(active.size * itemsize, span)
            kernel.traffic_bytes += asked * (2 if atomic else 1)
        return pointers + np.uint64((region.address - region.base) % 2**64)

    def _note_load(self, region: Region, where: Any) -> None:
        me = self.program
        if region.stored:
            other = region.writer[where]
            if ((other != 0) & (other != me)).any() and not self._ordered(region, where, other):
                self._race(region, where, other, "tl.load reads", "stored by")
        seen = region.reader[where]
        region.reader[where] = me if not seen.any() else np.where((seen == 0) | (seen == me), me, _MANY)

    def _note_store(
        self, region: Region, where: Any, offsets: np.ndarray, itemsize: int, value: Any, lanes: np.ndarray
    ) -> None:
        me = self.program
        self._one_lane_each(region, offsets.ravel(), value, lanes)
        for others, done in ((region.reader[where], "loaded by"), (region.writer[where], "stored by")):
            if (
                ((others != 0) & (others != me)).any()
                and not self._ordered(region, where, others, stored=done == "stored by")
                and self._changes(region, offsets, itemsize, value, lanes)
            ):
                self._race(region, where, others, "tl.store writes", done)
        region.writer[where] = me
        if self.tick:
            if region.written_at is None:
                region.written_at = np.zeros(region.writer.shape, dtype=np.int32)
            region.written_at[where] = self.tick
        region.stored = True

    @staticmethod
    def _one_lane_each(region: Region, offsets: np.ndarray, value: Any, lanes: np.ndarray) -> None:
        """Refuse a store that gives one element two values: here the last lane's stays, on a GPU any."""
        if value is None or (offsets[1:] > offsets[:-1]).all():
            return
        order = np.argsort(offsets, kind="stable")
        placed = offsets[order]
        twice = placed[1:] == placed[:-1]
        if not twice.any():
            return
        new = np.ascontiguousarray(np.broadcast_to(value, lanes.shape)[lanes]).ravel()[order]
        new = new.view(f"u{new.dtype.itemsize}")
        if (differ := twice & (new[1:] != new[:-1])).any():
            at = int(placed[1:][differ][0]) // region.itemsize
            raise RaceError(f"tl.store writes several values to {region.name}[{at}] at once, from different lanes")

    def _ordered(self, region: Region, where: Any, others: np.ndarray, stored: bool = True) -> bool:
        """Whether atomics may have put what other programs did with these elements before this access."""
        if self.program not in self.released:
            return False
        at = 0 if region.written_at is None or not stored else region.written_at[where]
        for other in np.unique(others):
            if other in (0, self.program, _MANY):
                continue
            last = self.released.get(int(other), -1)
            if ((others == other) & (np.asarray(at) >= last)).any():
                return False
        return True

    @staticmethod
    def _changes(region: Region, offsets: np.ndarray, itemsize: int, value: Any, lanes: np.ndarray) -> bool:
        """Whether a store writes other bytes than those that are there: equal ones race without harm."""
        if value is None:
            return True
        new = np.broadcast_to(value, lanes.shape)[lanes]
        if new.dtype.itemsize != itemsize:
            return True
        kind = np.dtype(f"u{itemsize}")
        real = (offsets.ravel() + region.address).astype(np.uint64)
        old = interpreter._interpreter.load(real, np.ones(real.shape, dtype=bool), np.zeros(real.shape, kind), kind)
        return bool((old != np.ascontiguousarray(new).ravel().view(kind)).any())

    def _race(self, region: Region, where: Any, others: np.ndarray, verb: str, done: str) -> None:
        flat = np.asarray(others).ravel()
        at = int(np.flatnonzero((flat != 0) & (flat != self.program))[0])
        index = where.start + at if isinstance(where, slice) else int(np.asarray(where).ravel()[at])
        other = "other programs" if flat[at] == _MANY else f"program {flat[at] - 1}"
        raise RaceError(
            f"program {self.program - 1}: {verb} {region.name}[{index}], which is {done} {other} of the same launch"
        )

    def _over_regions(
        self, pointers: np.ndarray, lanes: np.ndarray, indices: np.ndarray, itemsize: int, store: bool, load: bool,
        value: Any,
    ) -> np.ndarray:  # fmt: skip
        """One access through pointers into several tensors."""
        real = pointers.copy()
        owner = pointers >> np.uint64(_REGION_BITS)
        for index in np.unique(indices):
            chosen = lanes & (owner == index)
            real[chosen] = self.real_pointers(pointers, chosen, itemsize, store, load, value)[chosen]
        return real

    def _refuse(self, region: Region, offset: int, itemsize: int, store: bool) -> None:
        verb = "tl.store writes" if store else "tl.load reads"
        size = region.nbytes // region.itemsize
        program = interpreter.interpreter_builder.grid_idx
        raise OutOfBoundsError(
            f"{verb} {region.name}[{offset // region.itemsize}] but {region.name} has {size} elements "
            f"(program {program[0] if program[1:] == (0, 0) else tuple(program)})"
        )

    def begin(self, key: str, name: str, line: int) -> Kernel:
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = Kernel(name, line)
        kernel.launches += 1
        self.regions.clear()
        self.by_storage.clear()
        self.current, self.tick, self.released = kernel, 0, {}
        return kernel

    def end(self, kernel: Kernel) -> None:
        for region in self.regions.values():
            sectors = region.sectors(region.reader) + (region.sectors(region.writer) if region.stored else 0)
            kernel.sector_bytes += SECTOR_BYTES * sectors
        self.current = None

    def report(self) -> list[dict[str, Any]]:
        names = "name line launches programs sector_bytes traffic_bytes flops dot_flops".split()  # noqa: SIM905
        return [{"key": key, **{name: getattr(kernel, name) for name in names}} for key, kernel in self.kernels.items()]


TRACER = Tracer()
