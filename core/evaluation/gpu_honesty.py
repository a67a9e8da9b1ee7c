"""The GPU tier's honesty check: the orders to the candidate's child, in the sequence that gpu_work's rules want.

    arrange(child, backend, tools)                     after `start`, before `import`
    renew_memory(child, sizes)                         before each judged `call`
    baseline = Honesty(...).profile(baselines, base)   once per task, on the clean child
    finding = Honesty(...).check(...)                  last of all: a ghost run may leave a broken context

The profile is taken under the lease of the GPU alone, so that its times are those of the measured calls. The ghost run
comes last and is asked for briefly; a candidate that raises, dies or hangs in it was simply in need of its kernels.
"""

import contextlib
import time
from typing import Any

import msgspec
import torch

from core.evaluation import gpu_work
from core.evaluation.device_reference import Samples
from core.evaluation.findings import Finding
from core.evaluation.gpu_lease import lease
from core.evaluation.gpu_outputs import Outputs
from core.evaluation.gpu_spawn import ChildFailed, GpuZygote
from core.evaluation.gpu_task import GpuTask
from core.evaluation.gpu_work import Profile

CALLS = 4
GHOST_S = 15.0


class NoProfileError(Exception):
    """The profiler shows nothing of the clean baseline: our side is at fault."""


def arrange(child: GpuZygote, tools: dict[str, Any] | None = None) -> None:
    """Tell a fresh candidate's child what to watch; `tools` (cuda_tools) where it may build CUDA C++."""
    child.ask("watch", tools)


def renew_memory(child: GpuZygote, outputs: list[torch.Tensor]) -> None:
    """NaN into the memory that the child's allocator hands out next; `outputs` as `DeviceReference.outputs`."""
    child.ask("poison", [tensor.numel() * tensor.element_size() for tensor in outputs])


def profile(device: str, child: GpuZygote, out: Outputs, first: int = 0) -> Profile | Finding:
    """What `child` runs in a call. Takes the lease."""
    trees = out.sample_trees()
    child.ask("profile", 0, first, *trees)
    with lease(device, alone=True):
        answer = child.ask("profile", CALLS, first, *trees)
    return gpu_work.read(answer, CALLS)


def baseline_profile(device: str, child: GpuZygote, out: Outputs) -> Profile:
    """Of the clean eager child. Raises NoProfileError."""
    found = profile(device, child, out)
    if isinstance(found, Finding) or not found.rows:
        raise NoProfileError(
            "the profiler shows no work of the baseline: run python -m tests.gpu.profiler_in_the_walls"
        )
    return found


def check(
    task: GpuTask, child: GpuZygote, out: Outputs, baseline: Profile, source: str, backend: str,
    samples: list[Samples], places: list[torch.Tensor], runtime_ms: float | None = None,
) -> tuple[Finding | None, Profile | None]:  # fmt: skip
    """Everything that is asked of a candidate whose outputs are right; its profile for feedback comes along.

    `samples[output]` are right values of set 1 at `places` for the parameters that the child holds (those of the last
    call). Raises ChildFailed when the profiled calls fail; the child may be gone after it.
    """
    mine = profile(task.device, child, out, first=1)
    if isinstance(mine, Finding):
        return mine, None
    finding = gpu_work.check(source, backend, mine, baseline, runtime_ms)
    if finding is None:
        share, held_back = ghost_share(task, child, out, samples, places)
        finding = gpu_work.ghost(share, held_back, mine, source, backend)
    return finding, mine


def ghost_share(
    task: GpuTask, child: GpuZygote, out: Outputs, samples: list[Samples], places: list[torch.Tensor]
) -> tuple[float, int]:
    """The share of places that are right in every output of the ghost run (0 when it fails), and the launches held
    back."""
    before = child.deadline
    child.deadline = min(before, time.monotonic() + GHOST_S)
    with contextlib.suppress(ChildFailed, msgspec.ValidationError):
        renew_memory(child, task.reference.outputs)
        answer = msgspec.convert(child.ask("ghost", 1, task.reference.training), tuple[tuple[Any, list[Any]], int])
        (_, kinds), held_back = answer
        wanted = [list(tensor.shape) for tensor in task.reference.outputs]
        if [kind[1] for kind in kinds] != wanted:
            return 0.0, held_back
        with lease(task.device):
            got = out.poison()
            child.ask("take", out.whole_trees())
            child.deadline = before
            return min((right_share(*each) for each in zip(got, samples, places, strict=True)), default=0.0), held_back
    return 0.0, 0


def right_share(got: torch.Tensor, right: Samples, places: torch.Tensor) -> float:
    """Of the places, which have the right value; those that the reference leaves non-finite don't count."""
    if not got.numel():
        return 0.0
    known = torch.isfinite(right.wanted.double())
    close = (got.flatten()[places].double() - right.wanted.double()).abs() <= right.allowed
    return float((close & known).sum()) / max(1, int(known.sum()))
