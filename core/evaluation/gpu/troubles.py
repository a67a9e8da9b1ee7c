"""What went wrong while a candidate was judged on a GPU and is not its doing: whose it is, and the verdict or error.

The task does not fit (`unsupported`), its own module fails beside the candidate (`task_error`), this process's context
is lost, or somebody killed the baseline's child (`infra`). A lack of memory is the candidate's where its end sets free
far more than the task needs. Mixed into gpu.stage.GpuStage.
"""

import abc
from typing import Any

import torch

from core.evaluation.findings import Finding, feedback_text
from core.evaluation.gpu import faults as gpu_faults
from core.evaluation.gpu.clock import GpuSettings
from core.evaluation.gpu.condition import LOST, TOO_LARGE
from core.evaluation.gpu.measure import Measuring
from core.evaluation.gpu.spawn import ChildFailed
from core.evaluation.gpu.task import GpuTask
from core.evaluation.spawn import ZygoteError
from core.evaluation.verdict import Verdict
from core.tasks.format import TaskError
from core.tasks.task import Task

GREEDY = 2.0
"""A candidate that keeps this many times the task's own memory is at fault where the baseline finds none."""
OTHERS = 0.2
"""Share of the GPU's memory that contexts and spare children of several workers may have in use."""


class DoesNotFitError(TaskError):
    """The task does not fit this GPU."""


class Troubles(abc.ABC):
    """See the module's text."""

    settings: GpuSettings
    broken: str
    _clock: Measuring
    _held_gb: float
    _refused: dict[str, str]

    @abc.abstractmethod
    def _forget(self) -> None:
        """Let go of the task and the baseline's child."""

    def _baseline_failed(self, task: GpuTask, failure: ChildFailed, key: str) -> Verdict:
        """The task's own module failed beside this candidate: for want of memory, or for a reason of its own."""
        self._clock.forget()
        needs = task.needs.describe()
        if failure.error is None and not failure.timed_out:  # killed from outside: the task may be sound
            raise ZygoteError(f"the eager baseline of task {task.name} ended with {failure.code}")
        message = str((failure.error or {}).get("message", "")) or str(failure)
        if gpu_faults.out_of_memory(RuntimeError(message)):
            if self._greedy(task):
                return self._was_greedy(task, key)
            raise DoesNotFitError(self._no_room(needs))
        raise TaskError(f"task {task.name}: the eager baseline failed: {message[:200]}")

    def _greedy(self, task: GpuTask) -> bool:
        return self._held_gb > GREEDY * task.needs.total / 1e9 + 2

    def _was_greedy(self, task: GpuTask, key: str) -> Verdict:
        text = f"the candidate kept {self._held_gb:.1f} GB of device memory, too little was left to judge it"
        detail = f"On this GPU {task.needs.describe()}."
        return failed_verdict(key, Finding(stage="launch", category="memory", headline=text, detail=detail))

    def _own_trouble(self, task: Task, prepared: GpuTask | None, key: str, error: Exception) -> Verdict:
        """An error of this process's own: the task is too large, or this process's context is lost."""
        if gpu_faults.out_of_memory(error):
            if prepared is not None and self._greedy(prepared):
                return self._was_greedy(prepared, key)
            asked = " ".join(str(error).split(". ")[:2])[:120]  # what follows is advice to other programs
            needs = prepared.needs.describe() if prepared is not None else f"task {task.task_id}: {asked}"
            text = self._no_room(needs)
            self._forget()
            if prepared is None and self._alone():  # neither a candidate nor anybody else: it will never fit
                self._refused[task.source] = text
            raise DoesNotFitError(text) from None
        if gpu_faults.broken(error) and gpu_faults.context_lost(self.settings.device):
            self.broken = f"{LOST}, replace its process: {str(error)[:200]}"
            return infra_verdict(key, self.broken)
        raise TaskError(f"task {task.task_id} does not run: {type(error).__name__}: {str(error)[:200]}") from error

    def _alone(self) -> bool:
        """Whether next to nothing is in use on the GPU, once this process has let go of its own."""
        if self.settings.device == "cpu":
            return True
        free, total = torch.cuda.mem_get_info(torch.device(self.settings.device))
        return free > (1 - OTHERS) * total

    def _no_room(self, needs: str) -> str:
        there = ""
        if self.settings.device != "cpu":
            there = f" of {torch.cuda.get_device_properties(self.settings.device).total_memory / 1e9:.0f} GB"
        return f"{TOO_LARGE}{there}: {needs}; use a smaller profile than {self.settings.profile!r}"


def failed_verdict(key: str, finding: Finding, tier: Any = "gpu") -> Verdict:
    return Verdict(
        candidate_key=key, kind=finding.kind, tier=tier, stage=finding.stage, category=finding.category,
        compiled=finding.stage in ("correctness", "timing"), feedback=feedback_text(finding),
    )  # fmt: skip


def infra_verdict(key: str, text: str, category: str = "infra") -> Verdict:
    return Verdict(candidate_key=key, kind="infra", tier="gpu", stage="load", category=category, feedback=text[:400])
