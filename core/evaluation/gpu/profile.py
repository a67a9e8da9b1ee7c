"""What a GPU child tells of its own work: kernels by torch's profiler, a ghost run, fresh memory that is poisoned.

Runs in the candidate's process, so all of it can be forged by a candidate that gets behind Python; `gpu.work` holds it
against the parent's clock. Imported, and its functions taken, before the candidate is. The profiled calls go through
the same code as timed ones, so that a candidate has little to tell them apart by.

    watch tools               before the import: hook Triton's launcher; build CUDA extensions with these tools
    shares leads set          events around launches in a forward behind flushes: [total ms, own ms, launches, replays]
    poison sizes byte         fill memory that the allocator would hand out next with this byte
    profile leads first ...   a block of one call as timed ones are, its flushes alone, launches: [rows, rows, launches]
    ghost set training        forward without what the candidate's own kernels store: [output's structure, held back]

`rows` is [busy µs, [[name, count, µs], ...], µs of kernels beside the flush].
"""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from core.evaluation.gpu import device_memory

MOST_ROWS = 200
MOST_NAME_CHARS = 400
MOST_POISON_BYTES = 24 * 2**30
_SHARED_POOL = (0, 0)
_snapshot = torch.cuda.memory_snapshot
_profile, _activity = torch.profiler.profile, torch.profiler.ProfilerActivity
_host = torch.autograd.DeviceType.CPU
_event = torch.cuda.Event


class Watch:
    """What was launched, and whether launches are held back."""

    def __init__(self) -> None:
        self.ghost = False
        self.launched = 0
        self.held_back = 0
        """Launches, or calls of extensions, whose stores did not count in the ghost run."""
        self.around: list[tuple[Any, Any]] | None = None
        """Events before and after each launch, while they are wanted."""
        self.replays = 0
        """CUDA graphs that were replayed: what runs in them is not seen here."""

    def install(self) -> None:
        """Every Triton launch goes through the launcher's class, Inductor's too where it has no launcher of its own."""
        from triton.backends.nvidia.driver import CudaLauncher

        original = CudaLauncher.__call__

        @functools.wraps(original)
        def launch(launcher: Any, *arguments: Any, **named: Any) -> Any:
            self.launched += 1
            if self.ghost:
                self.held_back += 1
                return None
            if self.around is None:
                return original(launcher, *arguments, **named)
            before, after = _event(enable_timing=True), _event(enable_timing=True)
            before.record()
            result = original(launcher, *arguments, **named)
            after.record()
            self.around.append((before, after))
            return result

        CudaLauncher.__call__ = launch
        replay = torch.cuda.CUDAGraph.replay

        @functools.wraps(replay)
        def replayed(graph: Any) -> None:
            self.replays += 1
            replay(graph)

        torch.cuda.CUDAGraph.replay = replayed  # type: ignore[method-assign, assignment]

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of a CUDA extension: in the ghost run it is called, and what it wrote is spoilt after."""

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            self.launched += 1
            if not self.ghost:
                return function(*arguments, **named)
            given = [value for value in (*arguments, *named.values()) if isinstance(value, torch.Tensor)]
            before = [tensor.clone() for tensor in given]
            result = function(*arguments, **named)
            self.held_back += 1
            written = [new for new, old in zip(given, before, strict=True) if not _same_bytes(new, old)]
            for tensor in (*written, *_tensors(result)):
                tensor.detach().fill_(float("nan") if tensor.is_floating_point() else 113)
            return result

        return call

    @contextlib.contextmanager
    def holding_back(self) -> Iterator[None]:
        self.ghost, self.held_back = True, 0
        try:
            yield
        finally:
            self.ghost = False


def _same_bytes(new: torch.Tensor, old: torch.Tensor) -> bool:
    return torch.equal(new, old) or bool(((new == old) | ((new != new) & (old != old))).all())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [part for each in value for part in _tensors(each)] if isinstance(value, (list, tuple)) else []


def poison(device: str, sizes: list[int], byte: int) -> int:
    """Fill all that torch's allocator holds free with `byte`, after making it hold blocks of `sizes` bytes and small
    ones; answers with the bytes filled.

    What forward then leaves unwritten, or reads unwritten, shows. Memory that it takes past the allocator, or that the
    allocator has to ask the driver for, is not reached. A size that the device has no room for is left out.
    """
    if device == "cpu":
        return 0
    free, _ = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    room = min(free // 2, MOST_POISON_BYTES)
    # The allocator has a pool for up to 1 MiB and one above; each block is cut from a free one of its pool.
    blocks: list[torch.Tensor] = []
    for size in [*sorted(sizes, reverse=True), 64 << 20, *[4 << 20] * 4, *[1 << 20] * 16]:
        if 0 < size <= room:
            blocks.append(torch.empty(size, dtype=torch.uint8, device=device))
            room -= size
    del blocks
    torch.cuda.synchronize()
    filled = 0
    for segment in _snapshot():
        if tuple(segment.get("segment_pool_id", _SHARED_POOL)) != _SHARED_POOL:
            continue  # a graph's own
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                length = ctypes.c_size_t(block["size"])
                device_memory.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte), length)
                filled += block["size"]
            address += block["size"]
    torch.cuda.synchronize()
    return filled


def rows(device: str, work: Callable[[], None], leads: int = 1) -> list[Any]:
    """What ran while `work` did, by torch's profiler: [busy µs, [[name, count, µs], ...] by time, µs beside a flush].

    At most MOST_ROWS, what is beyond in one row without a name. Busy is the time in which anything ran: kernels side by
    side count once. On the CPU these are torch's operators, for tests of the way.
    """
    on_host = device == "cpu"
    profiler: Any = _profile(activities=[_activity.CPU if on_host else _activity.CUDA])
    with profiler:
        work()
        if not on_host:
            torch.cuda.synchronize()
    counts: dict[str, int] = {}
    times: dict[str, float] = {}
    spans: list[tuple[int, int, str]] = []
    for event in profiler.profiler.kineto_results.events():
        if (event.device_type() == _host) != on_host or event.is_user_annotation():
            continue
        name = event.name()[:MOST_NAME_CHARS]
        counts[name] = counts.get(name, 0) + 1
        times[name] = times.get(name, 0.0) + event.duration_ns() / 1e3
        spans.append((event.start_ns(), event.start_ns() + event.duration_ns(), name))
    ranked = sorted(times, key=lambda name: -times[name])
    found: list[Any] = [[name, counts[name], times[name]] for name in ranked[:MOST_ROWS]]
    rest = ranked[MOST_ROWS:]
    if rest:
        found.append(["", sum(counts[name] for name in rest), sum(times[name] for name in rest)])
    return [_union_us([span[:2] for span in spans]), found, _beside_first_us(spans, leads)]


def _beside_first_us(spans: list[tuple[int, int, str]], leads: int) -> float:
    """Time of other kernels that ran beside the first `leads` of the first one's name, the flushes: the stream was idle
    before, and what a call does in order comes after them."""
    if not spans:
        return 0.0
    name = min(spans)[2]
    flushes = sorted(span for span in spans if span[2] == name)[:leads]
    start, end = flushes[0][0], max(span[1] for span in flushes)
    return sum(max(0, min(end, e) - max(start, s)) for s, e, other in spans if other != name) / 1e3


def _union_us(spans: list[tuple[int, int]]) -> float:
    total, until = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total / 1e3
