"""The GPU child's orders that ask who did the work; what they do is in gpu_profile and cuda_on_gpu.

Apart from the other orders because they watch the candidate instead of running it. Imported in the zygote: what a
candidate can't import, it finds in memory all the same, so nothing here is secret.
"""

from typing import Any

from core.evaluation import cuda_on_gpu, gpu_profile


class HonestyOrders:
    """Mixed into gpu_child.Child, of whose methods these use `_block`, `_flushes` and `_call`."""

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

    def _poison(self, sizes: list[int]) -> int:
        self._output = None
        return gpu_profile.poison(self._device, sizes)

    def _profiler(self) -> None:
        """Make the profiler ready, which takes a while once."""
        gpu_profile.rows(self._device, lambda: None)

    def _profile(self, first: int, positions: list[Any], samples: list[Any]) -> list[Any]:
        """What ran on the device in one forward, done as `block` does it, and in a flush and samples alone; how many
        launches there were."""
        child: Any = self
        before = self._launched()
        block = gpu_profile.rows(self._device, lambda: child._block(1, first, 0, positions, samples))
        launched = self._launched() - before
        alone = gpu_profile.rows(self._device, lambda: child._flushes(1, positions, samples))
        self._output = None
        return [block, alone, launched]

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
