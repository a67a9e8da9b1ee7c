"""The GPU child's orders that ask who did the work; what they do is in gpu.profile and cuda_on_gpu.

Apart from the other orders because they watch the candidate instead of running it. Imported in the zygote: what a
candidate can't import, it finds in memory all the same, so nothing here is secret.
"""

import gc
from collections.abc import Callable
from typing import Any

import torch

from core.evaluation.gpu import counted as gpu_counted
from core.evaluation.gpu import cuda_on_gpu
from core.evaluation.gpu import profile as gpu_profile


class HonestyOrders:
    """Mixed into gpu.child.Child, of whose methods these use `_block`, `_flushes` and `_call`."""

    _device: str
    _folder: str
    _output: Any
    _watching: gpu_profile.Watch | None = None

    def _watch(self, tools: dict[str, Any] | None) -> None:
        """Before the import: hold launches back when told to; with `tools`, build CUDA C++ (cuda_on_gpu)."""
        if self._watching is None:
            self._watching = gpu_profile.Watch()
            self._watching.install()
        if tools is not None:
            cuda_on_gpu.install(tools, self._folder, self._watching)

    def _poison(self, sizes: list[int], byte: int) -> int:
        self._output = None
        return gpu_profile.poison(self._device, sizes, byte)

    def _profiler(self) -> None:
        """Make the profiler ready, which takes a while once."""
        gpu_profile.rows(self._device, lambda: None)

    def _shares(self, leads: int, number: int) -> list[float]:
        """One forward behind `leads` flushes, so that launches queue up: milliseconds of all of it and of the launches,
        how many these were, and how many graphs were replayed. Only after `watch`."""
        child: Any = self
        watch = self._watching
        assert watch is not None
        start, end = child._new_event(), child._new_event()
        self._output, watch.around, before = None, [], watch.replays
        child._remember()
        gc.disable()  # as in timed calls
        with torch.no_grad():
            for _ in range(leads):
                child._flush.zero_()
            start.record()
            output = child._forward(number)
            end.record()
        child._idle()
        gc.enable()
        del output
        child._put_back()
        child._idle()  # the trusted side may write to the inputs next
        pairs, watch.around = watch.around, None
        own = sum(float(first.elapsed_time(last)) for first, last in pairs)
        return [float(start.elapsed_time(end)), own, len(pairs), watch.replays - before]

    def _late(self, leads: int, number: int) -> None:
        """`leads` flushes, a forward behind them unless `number` is -1, and the device idle."""
        child: Any = self
        self._output = None
        child._remember()
        gc.disable()
        with torch.no_grad():
            for _ in range(leads):
                child._flush.zero_()
            output = child._forward(number) if number >= 0 else None
        child._idle()
        gc.enable()
        del output
        child._put_back()
        child._idle()  # the trusted side may write to the inputs next

    def _profile(self, leads: int, first: int, positions: list[Any], samples: list[Any]) -> list[Any]:
        """What ran on the device in one forward, done as `block` does it behind `leads` flushes, and in these and
        samples alone; how many launches there were."""
        child: Any = self

        def behind(work: Callable[[], None]) -> None:
            for _ in range(leads):
                child._flush.zero_()
            work()

        before = self._launched()
        block = gpu_profile.rows(
            self._device, lambda: behind(lambda: child._block(1, first, 0, positions, samples)), leads + 1
        )
        launched = self._launched() - before
        alone = gpu_profile.rows(self._device, lambda: behind(lambda: child._flushes(1, positions, samples)), leads + 1)
        self._output = None
        return [block, alone, launched]

    def _counters(self, command: list[str], task_source: str, profile: str, source: str) -> str:
        """Of a child that has no other order: what ncu prints of one forward."""
        return gpu_counted.counted(self._folder, command, task_source, profile, source)

    def _launched(self) -> int:
        return 0 if self._watching is None else self._watching.launched

    def _ghost(self, number: int, training: bool) -> list[Any]:
        """As `call` without gradients, with nothing stored by the candidate's own kernels: the answer of `call` and
        how many launches that were. Only after `watch`."""
        child: Any = self
        assert self._watching is not None
        with self._watching.holding_back():
            answer = child._call(number, training, False)
        return [answer, self._watching.held_back]
