"""The least time that a task can take on a GPU, for candidates that read faster than that: memory and matrix units.

Only what is certain counts, or an honest kernel that saves work would be called impossible:

memory   An input tensor counts where it was seen to matter: a NaN at each of some random places reached the output
         (gathers, slices and embeddings read a part only). Outputs count beyond what the L2 cache may still hold.
matrix   A product counts where both factors are the task's own inputs or parameters, dense (a triangle is not), and
         no later step shrinks its result (a sum over a product is a smaller product). Convolutions do not count:
         Winograd and FFT do them with far fewer multiplications. Two levels of Strassen are allowed for.

The rate of the matrix units is that of the fastest way whose result the tolerance lets through: float32 needs three
products of halves (a bfloat16 split in two parts each, leaving out the smallest of the four), or one in TF32 where that
is allowed; 16-bit types need one. A GPU that roofline.py does not list has no floor.
"""

import math
import random
from typing import Any

import msgspec
import torch

from core.evaluation import roofline
from core.evaluation.aten_costs import _footprint, cost, is_dot, operator_name, tensors_in
from core.evaluation.gpu import timing
from core.evaluation.gpu.task import GpuTask
from core.evaluation.trees import flatten
from core.evaluation.work import Counter

PROBES = 6
MOST_INPUTS = 8
DENSE = 0.9
STRASSEN = (7 / 8) ** 2
_PRODUCTS = frozenset(["mm", "bmm", "addmm", "baddbmm", "linear", "matmul"])


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; times are 0 where nothing is certain."""

    memory_ms: float = 0.0
    matrix_ms: float = 0.0
    gpu: str = ""
    """Whose data sheet; empty where the GPU is not listed."""

    @property
    def ms(self) -> float:
        return max(self.memory_ms, self.matrix_ms)

    @property
    def what(self) -> str:
        """Which of the two it is."""
        return "memory" if self.memory_ms >= self.matrix_ms else "matrix units"


class _Products(Counter):
    """The certain matrix flops of one run, by the type of their factors."""

    def __init__(self, own: list[torch.Tensor], least_output: int) -> None:
        super().__init__()
        self._own = {t.untyped_storage().data_ptr() for t in own}
        self._least = least_output
        self.certain: dict[torch.dtype, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = operator_name(func)
        if is_dot(name) and name in _PRODUCTS:
            factors = [t for t in tensors_in([args, kwargs]) if t.dim() > 1][-2:]
            results = tensors_in(out)
            if len(factors) == 2 and results and results[0].numel() <= self._least and all(map(self._certain, factors)):
                flops = cost(func, args, kwargs, out)[2]
                self.certain[factors[0].dtype] = self.certain.get(factors[0].dtype, 0.0) + flops
        return out

    def _certain(self, factor: torch.Tensor) -> bool:
        held = factor.untyped_storage().data_ptr() in self._own
        return held and int(torch.count_nonzero(factor)) >= DENSE * factor.numel()


def floor_of(task: GpuTask, gpu: roofline.Roofline | None, l2_bytes: float) -> Floor:
    """The floor; runs the reference a few times on the device, on inputs of its own."""
    if gpu is None:
        return Floor()
    inputs, share = _some(task)
    outputs = _outputs(task, inputs)
    written = sum(map(_footprint, outputs)) / share  # what is expanded is written once
    bad = _poisoned(outputs)
    del outputs
    read = 0.0 if bad else _bytes_that_matter(task, inputs, share)  # NaN by itself: nothing can be seen
    memory = timing.roofline_floor_ms(read, written, 0.0, gpu.dram_gb_per_s, 1.0, l2_bytes)
    return Floor(memory_ms=memory, matrix_ms=_matrix_ms(task, gpu, inputs) / share, gpu=gpu.name)


def _some(task: GpuTask) -> tuple[Any, float]:
    """Inputs of this process's own, and which share of a call they are: one part of a task that comes apart."""
    split = task.reference.split
    if split is None:
        return task.reference.inputs(random.SystemRandom().getrandbits(40)), 1.0
    start, stop = split.ranges()[0]
    return task.values(0).part(split, start, stop), (stop - start) / split.size


def _matrix_ms(task: GpuTask, gpu: roofline.Roofline, inputs: Any) -> float:
    tf32 = torch.get_float32_matmul_precision() != "highest"
    model = task.reference.built.model
    own = [*tensors_in(inputs), *model.parameters(), *model.buffers()]
    counter = _Products(own, max((t.numel() for t in task.reference.outputs), default=0))
    with counter:
        task.reference._run(inputs, False, task.reference.training)
    return sum(flops * STRASSEN / rate_tflops(gpu, dtype, tf32) * 1e-9 for dtype, flops in counter.certain.items())


def rate_tflops(gpu: roofline.Roofline, dtype: torch.dtype, tf32: bool) -> float:
    """The fastest rate of multiplying such factors so that the tolerance lets the result through."""
    if dtype in (torch.float16, torch.bfloat16):
        return gpu.half_tflops
    if dtype == torch.float32:
        return gpu.matrix_tflops if tf32 and gpu.matrix_tflops > gpu.half_tflops / 3 else gpu.half_tflops / 3
    return math.inf


def _bytes_that_matter(task: GpuTask, inputs: Any, share: float) -> float:
    rng = random.SystemRandom()
    total = 0.0
    marks = task.reference.split.sliced if task.reference.split is not None else ()
    cut = {id(tensor) for tensor, mark in zip(tensors_in(inputs), marks, strict=False) if mark}
    largest = sorted((t for t in tensors_in(inputs) if t.is_floating_point()), key=lambda t: -t.nbytes)[:MOST_INPUTS]
    for tensor in largest:
        if tensor.numel() and all(_matters(task, inputs, tensor, rng) for _ in range(PROBES)):
            whole = tensor.nbytes / (share if id(tensor) in cut else 1.0)
            total += whole if tensor.is_contiguous() else 0
    return total


def _matters(task: GpuTask, inputs: Any, tensor: torch.Tensor, rng: random.Random) -> bool:
    place = tuple(rng.randrange(size) for size in tensor.shape)
    before = tensor[place].clone()
    tensor[place] = math.nan
    try:
        return _poisoned(_outputs(task, inputs))
    finally:
        tensor[place] = before


def _outputs(task: GpuTask, inputs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = flatten(task.reference._run(inputs, False, task.reference.training)[0])[1]
    return found


def _poisoned(outputs: list[torch.Tensor]) -> bool:
    return any(t.is_floating_point() and bool(torch.isnan(t.sum())) for t in outputs)
