"""Measuring one candidate beside its task's eager baseline: the orders, the parent's clock, the checks of outputs.

Runs under the lease. What the readings mean is in timing.py. Every timed call's output is sampled at places that the
child learns with the order, and one call's whole output is compared; which call that is, is drawn. The way to the child
and the flushes that the parent's clock takes off are those of the baseline's child, which runs no candidate.
"""

import random
import time
from typing import Any

import msgspec
import numpy as np
import torch

from core.evaluation import timing
from core.evaluation.device_reference import PART_ELEMENTS, Samples
from core.evaluation.findings import Finding
from core.evaluation.gpu_lease import lease
from core.evaluation.gpu_outputs import MAX_CALLS, Outputs
from core.evaluation.gpu_spawn import GpuZygote
from core.evaluation.gpu_task import SETS, GpuTask

GB_PER_S = {"H200": 4800.0, "H100 PCIe": 2039.0, "H100": 3350.0, "A100": 2039.0, "L40S": 864.0, "B200": 8000.0}
"""Data sheets: a part of the GPU's name -> memory bandwidth. A GPU that is not here has no floor."""


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the stage is told."""

    device: str = "cuda:0"
    profile: str = "full"
    wall_s: float = 60.0
    """For one candidate, compilation and everything."""
    memory_mb: int = 16384
    """Host memory of a child."""
    part_elements: int = PART_ELEMENTS
    protocol: timing.Protocol = timing.Protocol()


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """What a clean baseline child takes for everything but the calls."""

    flush_ms: float
    """Of a call."""
    idle_ms: float
    """Of a block."""


def baseline_key(task: GpuTask) -> str:
    """What a baseline's times depend on."""
    parts = [task.source, task.device, torch.__version__, str(torch.backends.cuda.matmul.allow_tf32)]
    if task.device != "cpu":
        parts += [torch.cuda.get_device_name(torch.device(task.device)), str(torch.version.cuda)]
    return "\n".join(parts)


class Clock:
    """One measurement."""

    def __init__(self, settings: GpuSettings, baselines: GpuZygote, base: Outputs, rng: random.Random) -> None:
        self._settings, self._baselines, self._base, self._rng = settings, baselines, base, rng
        self._timed = Timed(flush_ms=0.0, idle_ms=0.0)
        self.blocks: list[timing.Block] = []

    def prepare(self, task: GpuTask, known: dict[str, Timed]) -> None:
        """Give the baseline the present parameters; what it takes for flushes is measured once per task."""
        child = self._baselines
        child.ask("state", task.state_trees(), task.reference.built.required)
        key = baseline_key(task)
        if key not in known:
            trees = self._base.sample_trees()
            with lease(self._settings.device, alone=True):
                child.ask("call", 0, task.reference.training, False)
                idle = min(_clock(child, "flushes", 0, *trees) for _ in range(5))
                flush = min((_clock(child, "flushes", 20, *trees) - idle) / 20 for _ in range(3))
            known[key] = Timed(flush_ms=flush, idle_ms=idle)
        self._timed = known[key]

    def measure(
        self, task: GpuTask, candidate: GpuZygote, out: Outputs, samples: list[list[Samples]],
        places: list[torch.Tensor],
    ) -> timing.Measured | Finding:  # fmt: skip
        """All blocks; a wrong output of a timed call is a finding. `samples[set][output]` are right values at
        `places`."""
        protocol, timed = self._settings.protocol, self._timed
        sides = {"candidate": (candidate, out), "baseline": (self._baselines, self._base)}
        estimates = {}
        for side, (child, outputs) in sides.items():
            outputs.choose(places, self._rng)
            total = min(_clock(child, "block", 1, 0, -1, *outputs.sample_trees()) for _ in range(3))
            estimates[side] = timing.flushed(total, timed.flush_ms, timed.idle_ms, 1)
        calls = timing.calls_per_block(protocol, estimates["baseline"], estimates["candidate"], timed.flush_ms)
        calls = min(calls, MAX_CALLS)
        order = timing.plan(protocol.rounds, self._rng)
        whole = self._rng.choice([index for index, (_, side) in enumerate(order) if side == "candidate"])
        self.blocks = []
        for index, (number, side) in enumerate(order):
            child, outputs = sides[side]
            first = self._rng.randrange(SETS)
            # A huge output is not held beside the next ones.
            keep = calls - 1 if task.huge else self._rng.randrange(calls)
            chosen = outputs.choose(places, self._rng)
            total = _clock(child, "block", calls, first, keep if index == whole else -1, *outputs.sample_trees())
            events = _readings(child, calls)
            if side == "candidate":
                finding = _compare_samples(samples, outputs, chosen, first, calls)
                if finding is None and index == whole:
                    finding = _recheck(task, child, outputs, (first + keep) % SETS)
                if finding is not None:
                    return finding
            wall = timing.flushed(total, timed.flush_ms, timed.idle_ms, calls)
            self.blocks.append(timing.Block(side=side, round=number, events_ms=tuple(events), wall_ms=wall))
        return timing.measured(self.blocks, self._floor(task), np.random.default_rng(self._rng.randrange(2**32)))

    def _floor(self, task: GpuTask) -> float:
        """Memory alone: how exact the matrix units must be is a task's own affair."""
        if task.device == "cpu":
            return 0.0
        gpu = torch.cuda.get_device_properties(torch.device(task.device))
        rate = next((rate for name, rate in GB_PER_S.items() if name in gpu.name), 0.0)
        if not rate:
            return 0.0
        return timing.roofline_floor_ms(task.input_bytes, task.output_bytes, 0.0, rate, 1.0, gpu.L2_cache_size)


def _recheck(task: GpuTask, child: GpuZygote, out: Outputs, which: int) -> Finding | None:
    """The whole output of one timed call."""
    outputs = out.poison()
    child.ask("take", out.whole_trees())
    child.ask("free")
    nowhere = [torch.zeros(0, dtype=torch.int64, device=task.device)] * len(outputs)
    finding, _ = task.reference.check(task.values(which), outputs, nowhere, "A timed call's output.")
    return None if finding is None else msgspec.structs.replace(finding, stage="timing")


def _compare_samples(
    samples: list[list[Samples]], out: Outputs, chosen: torch.Tensor, first: int, calls: int
) -> Finding | None:
    for number, rows in enumerate(out.samples(calls)):
        for which in range(SETS):
            mine = rows[(which - first) % SETS :: SETS].double()
            right = samples[which][number]
            wanted, allowed = right.wanted[chosen].double(), right.allowed[chosen]
            bad = ~((mine - wanted).abs() <= allowed) & torch.isfinite(wanted)
            if bool(bad.any()):
                text = f"{int(bad.any(1).sum())} of {len(mine)} timed calls gave another output than the right one"
                detail = "Calls are timed on other inputs in turn; each must compute its own output."
                return Finding(stage="timing", category="wrong_value", headline=text, detail=detail)
    return None


def _clock(child: GpuZygote, *order: Any) -> float:
    """Milliseconds from the order to the answer that the device is idle."""
    started = time.perf_counter()
    child.ask(*order)
    return (time.perf_counter() - started) * 1e3


def _readings(child: GpuZygote, calls: int) -> list[float]:
    answer = child.ask("readings")
    if not isinstance(answer, list) or len(answer) != calls or not all(type(part) is float for part in answer):
        return []
    return answer
