"""The GPU tier: a candidate run for real in a confined child; outputs compared and speed measured by this process.

    fork -> import -> construct -> call set 0 -> new values in set 0's memory, call again -> call set 1
         -> [lease of the GPU: B C C B blocks beside the eager baseline, samples of every timed call, one whole output]

Everything that decides is here: secret values, reference, comparison, the wall clock. The child is asked for output
bytes and for event readings; the latter count only where the wall agrees (timing.py). Outputs come back through an
arena of the candidate's own, filled with NaN before. Blocking; one candidate at a time per stage, several stages may
share a GPU and take turns by the lease.
"""

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from core.evaluation import compare, diagnosis, sandbox, timing
from core.evaluation.device_reference import Samples
from core.evaluation.findings import Finding, feedback_text
from core.evaluation.gpu_clock import GpuSettings as GpuSettings
from core.evaluation.gpu_lease import first_call, lease
from core.evaluation.gpu_measure import Measuring, plain, share
from core.evaluation.gpu_outputs import MAX_PLACES, Outputs
from core.evaluation.gpu_spawn import ChildFailed, GpuZygote
from core.evaluation.gpu_task import GpuTask
from core.evaluation.screens import screen
from core.evaluation.source_text import without_mark
from core.evaluation.spawn import ZygoteError
from core.evaluation.verdict import Verdict
from core.tasks.format import TaskError
from core.tasks.task import Task


class GpuStage:
    """One GPU's tier in one process."""

    def __init__(self, settings: GpuSettings, walls: sandbox.Walls, slot: int = 0) -> None:
        self.settings, self.walls = settings, walls
        self._candidates, self._baselines = GpuZygote(walls, slot), GpuZygote(walls, slot + 1)
        self._task: tuple[str, GpuTask] | None = None
        self._rng = random.SystemRandom()
        self._out: Outputs | None = None
        self._clock = Measuring(settings, self._baselines, self._rng, self._limits, self._spent)
        self.spent_s: dict[str, float] = {}
        """Where the latest candidate's time went."""
        self.peak_gb: dict[str, float] = {}
        """Most device memory of this process's tensors meanwhile; children and arenas come on top."""

    @property
    def measured(self) -> timing.Measured | None:
        """The latest measurement."""
        return self._clock.measured

    def start(self) -> None:
        for zygote in (self._candidates, self._baselines):
            zygote.start()

    def wait_ready(self) -> None:
        for zygote in (self._candidates, self._baselines):
            zygote.wait_ready()

    def stop(self) -> None:
        self._forget()
        self._clock.close()
        for zygote in (self._candidates, self._baselines):
            zygote.stop()

    def judge(self, task: Task, candidate: str, key: str, timed: bool = True) -> Verdict:
        """The verdict; without `timed` of correctness alone."""
        started = time.monotonic()
        self.spent_s, self.peak_gb = {}, {}
        candidate = without_mark(candidate)
        refused, screens = screen(candidate, task.backend)
        try:
            if refused is not None:
                verdict = _failed(key, refused, "static")
            else:
                verdict = self._judge(task, candidate, key, timed)
        except (TaskError, ZygoteError) as error:
            verdict = Verdict(
                candidate_key=key, kind="infra", tier="gpu", stage="load", category="infra", feedback=str(error)[:400]
            )
        screens = (*screens, *verdict.screens)
        return msgspec.structs.replace(verdict, screens=screens, wall_s=round(time.monotonic() - started, 4))

    # --- one candidate ---

    def _judge(self, task: Task, candidate: str, key: str, timed: bool) -> Verdict:
        with self._spent("task"), lease(self.settings.device):
            prepared = self._prepare(task)
            prepared.renew()
        if timed:
            self._clock.begin(prepared)
        verdict: Verdict | None = None
        try:
            try:
                samples, finding, places = self._correct(prepared, candidate)
                if finding is None and timed:
                    verdict = self._measure(prepared, key, samples, places)
            finally:
                if self._candidates.running:
                    self._candidates.end()
                self._drop_output()
        except ChildFailed as failure:
            finding = self._failure(failure)
        if self.settings.spare:
            self._candidates.ahead(self._limits(), "start", self.settings.device)
        if verdict is not None:
            return self._clock.others(prepared, verdict) if verdict.kind == "pass" else verdict
        if finding is not None:
            return _failed(key, finding)
        return Verdict(candidate_key=key, kind="pass", tier="gpu", compiled=True, correct=True, feedback="correct")

    def _limits(self) -> sandbox.Limits:
        settings = self.settings
        return sandbox.Limits(
            memory_mb=settings.memory_mb, wall_s=settings.wall_s, tmp_mb=512, threads=512, allow_processes=True,
            device=settings.device != "cpu",
        )  # fmt: skip

    def _load(self, zygote: GpuZygote, task: GpuTask, source: str) -> None:
        """Fork a child, import, construct, give it inputs and parameters."""
        with self._spent("start"):
            zygote.begin(self._limits(), "start", self.settings.device)
        with self._spent("import"):
            zygote.ask("import", source)
            init = task.reference.init
            zygote.ask("construct", ["list", [plain(list(init[0])), plain(init[1])]])
        share(zygote, "inputs", task.arena)
        zygote.ask("inputs", task.input_trees())
        zygote.ask("state", task.state_trees(), task.reference.built.required)

    def _drop_output(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None

    def _correct(self, task: GpuTask, candidate: str) -> tuple[list[list[Samples]], Finding | None, list[torch.Tensor]]:
        """Three calls; samples per set for the timed calls, or what is wrong."""
        self._drop_output()
        self._out = Outputs(self.settings.device, task.reference.outputs)
        self._load(self._candidates, task, candidate)
        share(self._candidates, "out", self._out.arena)
        places = [
            torch.randint(0, max(1, t.numel()), (MAX_PLACES,), device=self.settings.device)
            for t in task.reference.outputs
        ]
        samples: list[list[Samples]] = []
        # The first set's memory again with other values before the second set: what is remembered by address is wrong.
        for number, (which, note) in enumerate(((0, ""), (0, "with new values in place"), (1, "of the second set"))):
            if number == 1:
                task.scale_in_place()
            found, finding = self._call(task, which, places, note)
            if finding is not None:
                return [], finding, places
            samples.append(found)
        return samples[1:], None, places

    def _call(
        self, task: GpuTask, which: int, places: list[torch.Tensor], note: str
    ) -> tuple[list[Samples], Finding | None]:
        child, reference, device = self._candidates, task.reference, self.settings.device
        with self._spent("call"):
            child.ask("state", task.state_trees(), reference.built.required)
            with first_call(device) if which == 0 and not note else lease(device):
                structure, kinds = _checked_answer(child.ask("call", which, reference.training, False))
        wanted = [[str(t.dtype).removeprefix("torch."), list(t.shape), torch.device(task.device).type]
                  for t in reference.outputs]  # fmt: skip
        if not _same_structure(structure, reference.structure):
            text = "forward returned another nesting of tensors than Model does"
            return [], Finding(stage="correctness", category="wrong_structure", headline=text)
        if kinds != wanted:
            return [], _types_differ(kinds, wanted)
        assert self._out is not None
        with self._spent("wait"), lease(self.settings.device):
            with self._spent("copy"):
                outputs = self._out.poison()
                child.ask("take", self._out.whole_trees())
                child.ask("free")
            with self._spent("compare"):
                if not task.intact():
                    text = "forward changed its inputs"
                    return [], Finding(stage="correctness", category="input_mutated", headline=text)
                finding, samples = reference.check(task.values(which), outputs, places, note and f"Inputs {note}.")
                task.idle()
        return samples, finding

    def _failure(self, failure: ChildFailed) -> Finding:
        phase = {"import": "import", "construct": "construct", "start": "start"}.get(failure.doing, "forward")
        stage = diagnosis._stage(phase)
        doing = diagnosis._DOING[phase]
        if failure.timed_out:
            headline = f"stopped after {self.settings.wall_s:g} s while {doing}"
            return Finding(stage=stage, category="timeout", headline=headline)
        if failure.error is None:
            code = failure.code or 0
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            return Finding(stage=stage, category="crash", headline=f"the process ended ({name}) while {doing}")
        plain = {"type": "Exception", "message": "", "line": 0, "code": "", **failure.error, "phase": phase}
        try:
            error = msgspec.convert(plain, diagnosis.ErrorFrame)
        except msgspec.ValidationError as reason:
            return Finding(stage=stage, category="tampering", headline=f"an answer that is none of ours: {reason}")
        if "out of memory" in error.message and "CUDA" in error.message:
            return Finding(stage=stage, category="memory", headline=error.message[:300], line=error.line)
        if "illegal memory access" in error.message or "misaligned address" in error.message:
            text = "a kernel touched memory that is not its own"
            return Finding(stage="launch", category="out_of_bounds", headline=text, detail=error.message[:200])
        return diagnosis.error_finding(error, (), self.settings.memory_mb)

    # --- clocks ---

    def _measure(self, task: GpuTask, key: str, samples: list[list[Samples]], places: list[torch.Tensor]) -> Verdict:
        assert self._out is not None
        found = self._clock.verdict(task, key, self._candidates, self._out, samples, places)
        return _failed(key, found) if isinstance(found, Finding) else found

    # --- tasks ---

    def _prepare(self, task: Task) -> GpuTask:
        if self._task is not None and self._task[0] == task.source:
            return self._task[1]
        self._forget()
        settings = self.settings
        try:
            prepared = GpuTask(task.source, task.name, settings.profile, settings.device, settings.part_elements)
        except TaskError:
            raise
        except Exception as error:  # the task's own code may raise anything
            raise TaskError(f"task {task.task_id} does not run: {type(error).__name__}: {error}") from error
        self._task = (task.source, prepared)
        return prepared

    def _forget(self) -> None:
        self._clock.forget()
        if self._task is not None:
            self._task[1].close()
            self._task = None
            if self.settings.device != "cpu":
                torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _spent(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        gpu = self.settings.device != "cpu"
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            self.spent_s[name] = self.spent_s.get(name, 0.0) + time.monotonic() - started
            if gpu:
                self.peak_gb[name] = max(self.peak_gb.get(name, 0.0), torch.cuda.max_memory_allocated() / 1e9)


def _checked_answer(answer: Any) -> tuple[Any, list[Any]]:
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[1], list):
        raise ChildFailed("call", error={"type": "Garbled", "message": "no answer of ours"})
    return answer[0], answer[1]


def _same_structure(got: Any, wanted: Any) -> bool:
    """Whether the child's word for its output's nesting is the reference's; what is not a tensor counts too."""
    try:
        return compare._shape_of(got) == compare._shape_of(wanted) and not compare._values_differ(got, wanted)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError):
        return False


def _types_differ(got: list[Any], wanted: list[Any]) -> Finding:
    for number, (mine, right) in enumerate(zip(got, wanted, strict=False)):
        for index, (what, category) in enumerate((("dtype", "wrong_dtype"), ("shape", "wrong_shape"),
                                                  ("device", "wrong_type"))):  # fmt: skip
            if mine[index] != right[index]:
                text = f"output {number} has {what} {mine[index]}, wanted {right[index]}"
                return Finding(stage="correctness", category=category, headline=text)
    text = f"forward returned {len(got)} tensors, wanted {len(wanted)}"
    return Finding(stage="correctness", category="wrong_structure", headline=text)


def _failed(key: str, finding: Finding, tier: Any = "gpu") -> Verdict:
    return Verdict(
        candidate_key=key, kind=finding.kind, tier=tier, stage=finding.stage, category=finding.category,
        compiled=finding.stage in ("correctness", "timing"), feedback=feedback_text(finding),
    )  # fmt: skip
