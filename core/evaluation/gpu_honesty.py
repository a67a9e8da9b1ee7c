"""The GPU tier's honesty check: the orders to the candidate's child, in the sequence that gpu_work's rules want.

    arrange(child, tools)                        after `start`, before `import`; the baseline's child too
    renew_memory(child, outputs)                 before each judged `call`
    baseline = baseline_profile(...)             once per task, on the clean child
    finding, profile = check(...)                after the clocks, last of all: a ghost run may leave a broken context

The profile is taken under the lease of the GPU alone, so that its times are those of the measured calls, and each time
on values that the candidate has not seen: an answer that is remembered by its inputs' values costs less when timed than
when it is new, and that is what the parent's clock shows beside the profile. The ghost run
comes last and is asked for briefly; a candidate that raises, dies or hangs in it was simply in need of its kernels.
"""

import contextlib
import time
from typing import Any

import msgspec
import torch

from core.evaluation import gpu_work
from core.evaluation.findings import Finding
from core.evaluation.gpu_lease import lease
from core.evaluation.gpu_outputs import Outputs
from core.evaluation.gpu_spawn import ChildFailed, GpuZygote
from core.evaluation.gpu_task import GpuTask
from core.evaluation.gpu_work import Profile

REPEATS = 3
GHOST_S = 15.0


class NoProfileError(Exception):
    """The profiler shows nothing of the clean baseline: our side is at fault."""


def arrange(child: GpuZygote, tools: dict[str, Any] | None = None) -> None:
    """Tell a fresh candidate's child what to watch; `tools` (cuda_tools) where it may build CUDA C++."""
    child.ask("watch", tools)


def renew_memory(child: GpuZygote, outputs: list[torch.Tensor]) -> None:
    """NaN into the memory that the child's allocator hands out next; `outputs` as `DeviceReference.outputs`."""
    child.ask("poison", [tensor.numel() * tensor.element_size() for tensor in outputs])


def profile(task: GpuTask, child: GpuZygote, out: Outputs, renewed: bool) -> Profile | Finding:
    """What `child` runs in a call, the quickest of three; `renewed`: each with new values. Takes the lease."""
    child.ask("profiler")
    found = []
    with lease(task.device, alone=True):
        for _ in range(REPEATS):
            if renewed:
                task.scale_in_place()
            one = gpu_work.read(child.ask("profile", 0, *out.sample_trees()))
            if isinstance(one, Finding):
                return one
            found.append(one)
    return min(found, key=lambda one: one.busy_ms)


def baseline_profile(task: GpuTask, child: GpuZygote, out: Outputs) -> Profile:
    """Of the clean eager child. Raises NoProfileError."""
    found = profile(task, child, out, renewed=False)
    if isinstance(found, Finding) or not found.rows:
        raise NoProfileError(
            "the profiler shows no work of the baseline: run python -m tests.gpu.profiler_in_the_walls"
        )
    return found


def check(
    task: GpuTask, child: GpuZygote, out: Outputs, baseline: Profile, source: str, backend: str,
    places: list[torch.Tensor], runtime_ms: float | None = None,
) -> tuple[Finding | None, Profile | None]:  # fmt: skip
    """Everything that is asked of a candidate whose outputs are right; its profile for feedback comes along.

    `out` is the candidate's, `places` flat indices per output, `runtime_ms` the measured time of a call. The values of
    set 0 are others afterwards. Raises ChildFailed when the profiled calls fail; the child may be gone after it.
    """
    mine = profile(task, child, out, renewed=True)
    if isinstance(mine, Finding):
        return mine, None
    finding = gpu_work.check(source, backend, mine, baseline, runtime_ms)
    if finding is None:
        finding = gpu_work.ghost(*ghost_share(task, child, out, places), mine)
    return finding, mine


def ghost_share(task: GpuTask, child: GpuZygote, out: Outputs, places: list[torch.Tensor]) -> tuple[float, int]:
    """The share of places that are the same in every output of the ghost run as in the call before (0 when it fails),
    and the launches held back."""
    before = _values(task, child, out, places, child.ask("call", 0, task.reference.training, False))
    child.deadline = min(child.deadline, time.monotonic() + GHOST_S)
    with contextlib.suppress(ChildFailed, msgspec.ValidationError):
        renew_memory(child, task.reference.outputs)
        answer, held_back = msgspec.convert(child.ask("ghost", 0, task.reference.training), tuple[Any, int])
        after = _values(task, child, out, places, answer)
        return min((same_share(*pair) for pair in zip(after, before, strict=True)), default=0.0), held_back
    return 0.0, 0


def _values(
    task: GpuTask, child: GpuZygote, out: Outputs, places: list[torch.Tensor], answer: Any
) -> list[torch.Tensor]:
    """Float64 values of the child's latest output at `places`; none of them known when it has other shapes."""
    _, kinds = msgspec.convert(answer, tuple[Any, list[tuple[str, list[int], str]]])
    wanted = [list(tensor.shape) for tensor in task.reference.outputs]
    if [kind[1] for kind in kinds] != wanted:
        return [torch.full(at.shape, float("nan"), dtype=torch.float64, device=task.device) for at in places]
    with lease(task.device):
        got = out.poison()
        child.ask("take", out.whole_trees())
        return [tensor.flatten()[at].double() for tensor, at in zip(got, places, strict=True)]


def same_share(after: torch.Tensor, before: torch.Tensor) -> float:
    """Of the values that were finite before, those that are the same but for rounding."""
    known = torch.isfinite(before)
    close = (
        (after - before).abs() <= 1e-3 * before.abs() + 1e-6 * before[known].abs().max() if bool(known.any()) else known
    )
    return float((close & known).sum()) / max(1, int(known.sum()))
