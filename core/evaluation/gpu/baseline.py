"""Baselines beside eager: what they are, what their times depend on, and measuring one in a process of its own.

eager          the task's Model as it is; runs beside every candidate, block by block (gpu.clock.Measurement)
compile        torch.compile's default mode
max-autotune   torch.compile(mode="max-autotune"): tries configurations for many seconds, uses CUDA graphs

The compiled ones are measured once per key, in a fresh process, alone on a quiet GPU, just after eager was, and
remembered on disk with eager's time of that minute. A candidate's speedup over one of them is its measured speedup over
eager divided by the remembered gain over eager: what drifts on a GPU drifts for both. Where eager is no longer what it
was, the others are measured again.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from core.evaluation.aten_costs import tensors_in
from core.evaluation.gpu import faults as gpu_faults
from core.evaluation.gpu import precision as gpu_precision
from core.evaluation.gpu import timing
from core.evaluation.gpu.baselines import NOISY, Baseline
from core.evaluation.gpu.clock import Clock, GpuSettings, Side
from core.evaluation.gpu.lease import first_call, lease
from core.evaluation.gpu.outputs import MAX_CALLS, Outputs
from core.evaluation.gpu.quiet import Quiet
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.gpu.task import SETS, GpuTask

MODES = {"eager": "", "compile": "default", "max-autotune": "max-autotune"}
"""Name -> torch.compile's mode."""
TITLES = {"eager": "eager PyTorch", "compile": "torch.compile", "max-autotune": "torch.compile max-autotune"}
"""For the feedback."""
BLOCKS = 4
QUIET_S = 70.0
"""Longest wait for other processes' kernels to end; a candidate's usual time and a little."""
_COMPILED = """

def ModelNew(*args, **kwargs):
    import os, torch
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compiled")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch._inductor.config
    torch._inductor.config.compile_threads = 1
    model = Model(*args, **kwargs)
    model.compile(mode={mode!r})
    return model
"""


def source(task_source: str, name: str) -> str:
    """The baseline as a child imports it."""
    mode = MODES[name]
    return task_source + (_COMPILED.format(mode=mode) if mode else "\n\nModelNew = Model\n")


@cache
def driver_version() -> str:
    """The kernel module's version; empty without one."""
    path = Path("/sys/module/nvidia/version")
    return path.read_text().strip() if path.exists() else ""


def key(task: GpuTask, settings: GpuSettings, name: str) -> dict[str, Any]:
    """All that a baseline's time depends on."""
    given = tensors_in(task._template)
    gpu = "cpu" if settings.device == "cpu" else torch.cuda.get_device_name(torch.device(settings.device))
    return {
        "source": source(task.source, name),
        "profile": settings.profile,
        "inputs": [[str(t.dtype), list(t.shape), list(t.stride())] for t in given],
        "outputs": [[str(t.dtype), list(t.shape), list(t.stride())] for t in task.reference.outputs],
        "precision": task.reference.flags,
        "mode": name,
        "gpu": gpu,
        "driver": driver_version(),
        "torch": str(torch.__version__),
        "triton": packages().get("triton", ""),
        "cuda": str(torch.version.cuda),
        "packages": packages(),
        "protocol": msgspec.to_builtins(settings.protocol),
    }


@cache
def packages() -> dict[str, str]:
    """Versions of what makes and runs kernels: Triton, and libraries that come as packages (cuBLAS, cuDNN, ptxas)."""
    from importlib.metadata import distributions

    found = {str(each.name).lower(): each.version for each in distributions() if each.name}
    return {name: found[name] for name in sorted(found) if name.startswith(("triton", "pytorch-triton", "nvidia-"))}


def lasting(found: Baseline) -> bool:
    """Whether to remember it: a child that was killed, or had no room beside others, says nothing of the task."""
    lost = ": ended with " in found.trouble or found.trouble.startswith(NOISY)
    passing = lost or gpu_faults.out_of_memory(RuntimeError(found.trouble))
    return not (found.trouble and passing)


def load(zygote: GpuZygote, task: GpuTask, name: str, out: Outputs) -> None:
    """All orders that bring a forked child to where the baseline can be called; nobody waits for them here."""
    zygote.order("import", source(task.source, name))
    zygote.share(task.arena_name, task.arena)
    zygote.order("construct", task.init_tree())
    zygote.order("inputs", task.input_trees(), task.reference.mutated, zygote.baseline)
    zygote.order("state", task.state_trees(), task.reference.built.required)
    zygote.share("out", out.arena)


def once_more(
    clock: Clock, side: Side, task: GpuTask, settings: GpuSettings, estimate_ms: float, rng: random.Random
) -> float:
    """Median milliseconds of two blocks of a child that was measured before; `clock` learns again what all but the
    calls takes. Under the lease; raises ChildFailed, and
    NeverQuietError. Who waits for a core here seems as slow as beside the candidate, and nothing is found."""
    calls = timing.calls_per_block(settings.protocol, estimate_ms, estimate_ms, clock.timed.flush_ms)
    times: list[float] = []
    side.child.ask("call", 0, task.reference.training, False)  # blocks of flushes sample its output
    clock.learn(side.child, side.out.sample_trees())
    for number in range(2):
        block = None
        while block is None or clock.spoilt(block):
            first, trees = rng.randrange(SETS), side.out.sample_trees()
            block = clock.block(side.child, "baseline", number, min(calls, MAX_CALLS), first, -1, trees)
        times += block.agreed.times_ms
    return float(np.median(times))


def alone(
    side: Side, task: GpuTask, settings: GpuSettings, clock: Clock, places: list[torch.Tensor], eager_ms: float,
    rng: random.Random, autotunes: bool, quiet: Quiet | None = None,
) -> Baseline:  # fmt: skip
    """Compile and measure the baseline that `side.child` holds; what it can't do is in the answer's `trouble`.

    Raises TimeoutError where other processes' kernels, which `quiet` sees, never end.
    """
    child = side.child

    def blocks() -> list[timing.Agreed]:
        child.ask("call", 0, task.reference.training, False)  # blocks that were disturbed left no output to sample
        clock.learn(child, side.out.sample_trees())
        estimate = clock.estimate(child, side.out.sample_trees())
        calls = timing.calls_per_block(settings.protocol, estimate, estimate, clock.timed.flush_ms)
        times: list[timing.Agreed] = []
        while len(times) < BLOCKS:
            side.out.choose(places, rng)
            trees = side.out.sample_trees()
            block = clock.block(child, "baseline", len(times), calls, rng.randrange(SETS), -1, trees)
            if not clock.spoilt(block):
                times.append(block.agreed)
        return times

    try:
        child.settle()  # torch, the compiler and the module are there before anybody is kept waiting
        # Autotuning is measuring: with others on the GPU it would pick anything. Compiling alone need not wait.
        side.out.choose(places, rng)
        with lease(settings.device, alone=True) if autotunes else first_call(settings.device):
            if autotunes and quiet is not None and not quiet.wait(QUIET_S):
                raise TimeoutError(f"somebody else's kernels ran on {settings.device} all the time: no autotuning")
            for number in (*range(SETS), *range(SETS)):  # graphs are recorded in the second call
                child.ask("call", number, task.reference.training, False)
        side.out.choose(places, rng)
        with lease(settings.device, alone=True):
            times = blocks() if quiet is None else quiet.around(blocks, QUIET_S)
        changed = gpu_precision.difference(child.ask("precision"), task.reference.flags)
    except ChildFailed as failure:
        return Baseline(median_ms=0.0, eager_ms=eager_ms, calls=0, clock="", trouble=str(failure)[:500])
    if changed:
        text = f"it ran with {changed}: its time is of another precision than eager's"
        return Baseline(median_ms=0.0, eager_ms=eager_ms, calls=0, clock="", trouble=text)
    flat = [time for block in times for time in block.times_ms]
    walls = sum(block.clock == "wall" for block in times)
    return Baseline(
        median_ms=float(np.median(flat)), eager_ms=eager_ms, calls=len(flat),
        clock="wall" if 2 * walls >= len(times) else "events",
    )  # fmt: skip
