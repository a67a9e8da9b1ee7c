"""The tiers of judging: the CPU tier for every candidate, then the GPU tier for those that it let through.

    CPU tier    fail              -> that is the verdict; no GPU time is spent
                pass              -> GPU tier: right at full size on real hardware, and how fast
                can't tell        -> GPU tier: bfloat16 arithmetic, CUDA C++, graphs, what takes an interpreter too long

A candidate can tell the tiers apart and behave otherwise in each; so the GPU tier asks again who did the work, and what
passes has passed both. Without a GPU in the settings the CPU tier is all there is.
"""

import contextlib
import logging
import re
import time
from typing import Protocol

import msgspec
import torch

from core.evaluation.gpu import probe as gpu_probe
from core.evaluation.gpu.health import GpuHealth, GpuUnfit
from core.evaluation.gpu.lease import lease
from core.evaluation.gpu.stage import GpuSettings, GpuStage
from core.evaluation.judge import Judge
from core.evaluation.proof import Unproven, prove
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.evaluation.walls import sandbox
from core.tasks.task import Task

GPU_SLOTS = 1000
"""Zygotes of the GPU tier are numbered from here on, two for each worker: each has a user id of its own."""
AGAIN_S = 1.0
PROOF_WAIT_S = 60.0
"""Longest wait of a proof for a GPU that others use or that is in quarantine: a worker's start has a deadline."""
_log = logging.getLogger(__name__)
_TOO_MUCH = ("timeout", "memory")
"""Categories that say something of the interpreter's limits, where running was what took it."""


class AnyJudge(Protocol):
    """What a worker process holds."""

    walls: sandbox.Walls

    @property
    def preparing(self) -> bool:
        """The task's own code is what is waited for, `judge.REFERENCE_S` at most."""
        ...

    def start(self) -> None: ...

    def wait_ready(self) -> None: ...

    def stop(self) -> None: ...

    def judge(self, task: Task, candidate: str, key: str) -> Verdict: ...

    def rest(self) -> None:
        """After an answer was sent: what need not keep anybody waiting."""
        ...

    def prove(self) -> None:
        """Raises Unproven where it can't tell right from wrong on this machine."""
        ...


def open_judge(settings: JudgeSettings, slot: int = 0, proves: bool = True) -> AnyJudge:
    """The judge that the settings ask for; with `proves` it shows on its GPU that it can judge, before the first
    candidate. Raises OSError when this machine does not allow it."""
    if not settings.on_gpu:
        return Judge(settings, slot)
    return TieredJudge(settings, visible_gpu(settings.device_class), slot, proves=proves)


def visible_gpu(device_class: str) -> str:
    """The first visible GPU, `cuda:0`; raises OSError unless it is of that class."""
    if not torch.cuda.is_available():
        raise OSError(
            f"judge.device_class = {device_class!r}, but torch sees no GPU here: see `kernelmill doctor`, or use 'cpu'"
        )
    name = torch.cuda.get_device_name(0)
    if device_class != "gpu" and device_class not in re.sub(r"[^a-z0-9]", "", name.lower()):
        raise OSError(
            f"judge.device_class = {device_class!r}, but the GPU here is {name!r}: its verdicts would not count"
        )
    return "cuda:0"


class TieredJudge:
    """Both tiers in one worker process; `device` is the GPU (`cpu` in tests: the same stage without one, which can't
    ask for the profile of a device: `own_work` False)."""

    def __init__(
        self, settings: JudgeSettings, device: str, slot: int = 0, own_work: bool = True, proves: bool = False
    ) -> None:
        self.settings = settings
        self._proves = proves
        self._cpu = Judge(msgspec.structs.replace(settings, device_class="cpu", speed="none"), slot)
        self.walls = self._cpu.walls
        chosen = GpuSettings(
            device=device,
            profile=settings.gpu_profile,
            wall_s=settings.gpu_wall_s,
            memory_mb=settings.gpu_memory_mb,
            baseline=settings.baseline,
            baselines=settings.baselines,
            profile_lines=settings.profile_lines,
            counters=settings.counters,
            own_work=own_work,
        )
        self.gpu = GpuStage(chosen, self.walls, GPU_SLOTS + 2 * slot)
        self.health = GpuHealth(
            device,
            probe=lambda: gpu_probe.warm(self.gpu.candidates, device),
            prober=self.gpu.candidates,
            keep=[self.gpu.baselines, self.gpu.candidates],
            guard=lambda: lease(device),
        )
        self.gpu.watch_quiet(self.health.quiet)

    @property
    def preparing(self) -> bool:
        return self._cpu.preparing

    def start(self) -> None:
        self._cpu.start()
        self.gpu.start()

    def wait_ready(self) -> None:
        self._cpu.wait_ready()
        self.gpu.wait_ready()
        with contextlib.suppress(torch.OutOfMemoryError):  # others hold it all just now: the first measurement learns
            self.health.quiet.calibrate()
        if self._proves:
            self._prove()

    def prove(self) -> None:
        self._cpu.prove()
        self._prove()

    def _prove(self) -> None:
        """The GPU tier alone. A GPU that others use, or that is unfit just now, has a part in it: what may be their
        doing (a lack of memory makes a task unsupported) is no proof of anything, and a failure counts when it comes
        again. Raises Unproven."""
        until = time.monotonic() + PROOF_WAIT_S
        for again in (False, True):
            try:
                prove(_Untimed(self, until))
                return
            except (TimeoutError, GpuUnfit) as error:
                _log.warning("unproven on the GPU: %s", error)
                return
            except Unproven as error:
                _log.warning("on the GPU %s", error)
                if error.verdict.kind in ("infra", "unsupported") or error.verdict.category in _TOO_MUCH:
                    return
                if again:
                    raise
            time.sleep(AGAIN_S)

    def stop(self) -> None:
        self._cpu.stop()
        self.gpu.stop()

    def judge(self, task: Task, candidate: str, key: str) -> Verdict:
        """The verdict; never raises for anything that a task or a candidate does. Raises GpuUnfit when the GPU can't be
        had, ContextLost when this process must end (`gpu.health`)."""
        first = self._cpu.judge(task, candidate, key)
        if not goes_on(first):
            return first
        timed = self.settings.speed == "measured"
        try:
            last = self.health.run(lambda: self.gpu.judge(task, candidate, key, timed))
        except TimeoutError as error:
            raise GpuUnfit(str(error)) from None
        screens = tuple(dict.fromkeys((*first.screens, *last.screens)))
        return msgspec.structs.replace(last, wall_s=round(first.wall_s + last.wall_s, 4), screens=screens)

    def rest(self) -> None:
        """Probe a GPU that is in quarantine, so that the next candidate need not wait for it."""
        with contextlib.suppress(GpuUnfit):
            self.health.recover()


class _Untimed:
    """The GPU tier alone, correctness alone; it waits for the GPU until `until` at most."""

    def __init__(self, judge: TieredJudge, until: float) -> None:
        self._judge, self._until = judge, until

    def judge(self, task: Task, candidate: str, key: str) -> Verdict:
        wait_s = max(0.0, self._until - time.monotonic())
        return self._judge.health.run(lambda: self._judge.gpu.judge(task, candidate, key, False), wait_s)


def goes_on(verdict: Verdict) -> bool:
    """Whether the GPU tier is asked after this verdict of the CPU tier."""
    too_much = verdict.stage == "launch" and verdict.category in _TOO_MUCH
    return verdict.kind in ("pass", "unsupported") or (verdict.kind == "fail" and too_much)
