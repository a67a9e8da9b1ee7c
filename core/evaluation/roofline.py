"""Modelled speed: what eager PyTorch and a candidate would take on a GPU's roofline, from counts; never measured.

Per operator or kernel: max(bytes / DRAM bandwidth, traffic / L2 bandwidth, flops / peak) plus a launch.
- Eager: every aten operator of the reference reads its inputs and writes its outputs, at the `full` profile's shapes.
- Candidate: different memory sectors, all traffic and arithmetic that its kernels were seen to do at the judged
  profile, scaled to `full` by the task's own growth (compulsory bytes for memory, matrix flops for what contains
  tl.dot), plus the torch operators that it still runs.
- Floor: no candidate is faster than the task's compulsory bytes (inputs, parameters, outputs once) and matrix flops
  allow, with one launch. A child can unhook its counters, so the floor is computed by the trusted side.
Not modelled: occupancy, block sizes, coalescing within a sector, tail effects, overlap of launches, clocks. Matrix
flops count at the same peak on both sides, so that TF32 against strict float32 earns nothing.
"""

import re
from collections.abc import Iterable

import msgspec

from core.evaluation.work import Work


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's limits, from its data sheet; the L2 figure is a rounded public measurement."""

    name: str
    dram_gb_per_s: float
    l2_gb_per_s: float
    vector_tflops: float
    """float32 outside the matrix units."""
    matrix_tflops: float
    """TF32 or the part's nearest equal, dense."""
    half_tflops: float
    """float16 and bfloat16 on the matrix units, dense."""
    launch_us: float = 3.0
    """From one kernel's end to the next one's start in a stream that is kept full."""


_A100 = Roofline(
    name="A100 80GB", dram_gb_per_s=2039, l2_gb_per_s=4800, vector_tflops=19.5, matrix_tflops=156, half_tflops=312
)
_L40S = Roofline(
    name="L40S", dram_gb_per_s=864, l2_gb_per_s=4000, vector_tflops=91.6, matrix_tflops=183, half_tflops=362
)
_H100 = Roofline(
    name="H100 SXM", dram_gb_per_s=3350, l2_gb_per_s=7000, vector_tflops=67, matrix_tflops=495, half_tflops=990
)
_H100_PCIE = Roofline(
    name="H100 PCIe", dram_gb_per_s=2039, l2_gb_per_s=5500, vector_tflops=51, matrix_tflops=378, half_tflops=756
)
_H100_NVL = Roofline(
    name="H100 NVL", dram_gb_per_s=3938, l2_gb_per_s=6500, vector_tflops=60, matrix_tflops=418, half_tflops=836
)
_H200 = msgspec.structs.replace(_H100, name="H200", dram_gb_per_s=4800)
_B200 = Roofline(
    name="B200", dram_gb_per_s=8000, l2_gb_per_s=14000, vector_tflops=80, matrix_tflops=1100, half_tflops=2250
)
_MI300X = Roofline(
    name="MI300X", dram_gb_per_s=5300, l2_gb_per_s=10000, vector_tflops=163, matrix_tflops=653, half_tflops=1307
)
ROOFLINES = {"cuda:80": _A100, "cuda:89": _L40S, "cuda:90": _H100, "cuda:100": _B200, "hip:gfx942": _MI300X}
"""The usual GPU of an architecture: what a target without a machine is modelled on."""
_BY_NAME = (
    ({"H100", "PCIE"}, _H100_PCIE), ({"H100", "NVL"}, _H100_NVL), ({"H100"}, _H100), ({"H200"}, _H200),
    ({"A100"}, _A100), ({"L40S"}, _L40S), ({"B200"}, _B200), ({"MI300X"}, _MI300X),
)  # fmt: skip
DEFAULT = "cuda:90"


def of_gpu(name: str) -> Roofline | None:
    """The GPU that is here, by the driver's name for it ("NVIDIA H100 80GB HBM3"); None for one that is not listed."""
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    return next((gpu for wanted, gpu in _BY_NAME if wanted <= words), None)


class KernelCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What one kernel was seen to do in one forward."""

    launches: float
    sector_bytes: float
    traffic_bytes: float
    flops: float
    dot_flops: float


class Modelled(msgspec.Struct, frozen=True, kw_only=True):
    """Times at the `full` profile in ms."""

    baseline_ms: float
    candidate_ms: float
    floor_ms: float

    @property
    def speedup(self) -> float:
        return self.baseline_ms / self.candidate_ms


def operator_ms(gpu: Roofline, moved: float, flops: float, dot: bool) -> float:
    """One torch operator: `moved` bytes, `flops` operations."""
    peak = gpu.matrix_tflops if dot else gpu.vector_tflops
    return max(moved / gpu.dram_gb_per_s * 1e-6, flops / peak * 1e-9) + gpu.launch_us * 1e-3


def eager_ms(gpu: Roofline, work: Work) -> float:
    from core.evaluation.aten_costs import is_dot

    return sum(operator_ms(gpu, moved, flops, is_dot(name)) for name, moved, flops in work.operators)


def floor_ms(gpu: Roofline, work: Work) -> float:
    """What no implementation of this task can beat on this GPU."""
    memory = work.compulsory_bytes / gpu.dram_gb_per_s * 1e-6
    return max(memory, work.dot_flops / gpu.matrix_tflops * 1e-9) + gpu.launch_us * 1e-3


PRODUCT_SHARE = 0.2
"""A kernel with this share of the task's matrix flops in vector arithmetic does its products there (tl.sum adds are not
counted, so half of them are seen)."""


def kernel_ms(
    gpu: Roofline, counts: KernelCounts, bytes_ratio: float, flops_ratio: float, judged_dot_flops: float = 0.0
) -> float:
    """All launches of one kernel; ratios scale from the judged profile to `full`. What does the task's products grows
    with them, in tl.dot or not."""
    by_hand = judged_dot_flops > 0 and counts.flops >= PRODUCT_SHARE * judged_dot_flops
    traffic_ratio = flops_ratio if counts.dot_flops or by_hand else bytes_ratio
    busy = max(
        counts.sector_bytes * bytes_ratio / gpu.dram_gb_per_s * 1e-6,
        counts.traffic_bytes * traffic_ratio / gpu.l2_gb_per_s * 1e-6,
        counts.flops * (flops_ratio if by_hand and not counts.dot_flops else bytes_ratio) / gpu.vector_tflops * 1e-9,
        counts.dot_flops * flops_ratio / gpu.matrix_tflops * 1e-9,
    )
    return busy + counts.launches * gpu.launch_us * 1e-3


def modelled(
    target: str,
    judged: Work,
    full: Work,
    kernels: Iterable[KernelCounts],
    operators: Iterable[tuple[str, float, float, float]],
) -> Modelled:
    """Baseline, candidate and floor at `full`; `kernels` and torch `operators` (name, calls, bytes, flops) are of
    one forward at `judged`."""
    from core.evaluation.aten_costs import is_dot

    gpu = ROOFLINES.get(target) or ROOFLINES[DEFAULT]
    bytes_ratio = full.compulsory_bytes / max(1, judged.compulsory_bytes)
    flops_ratio = full.dot_flops / judged.dot_flops if judged.dot_flops else bytes_ratio
    total = sum(kernel_ms(gpu, counts, bytes_ratio, flops_ratio, judged.dot_flops) for counts in kernels)
    for name, calls, moved, flops in operators:
        ratio = flops_ratio if is_dot(name) else bytes_ratio
        total += operator_ms(gpu, moved * bytes_ratio, flops * ratio, is_dot(name)) + (calls - 1) * gpu.launch_us * 1e-3
    least = floor_ms(gpu, full)
    return Modelled(baseline_ms=eager_ms(gpu, full), candidate_ms=max(total, least), floor_ms=least)
