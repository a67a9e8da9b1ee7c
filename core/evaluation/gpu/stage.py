"""The GPU tier: a candidate run for real in a confined child; outputs compared and speed measured by this process.

    fork -> import -> construct -> call set 0 -> new values in set 0's memory, call again -> call set 1 -> other sizes
         -> [lease of the GPU: B C C B blocks beside the eager baseline, samples of every timed call, one whole output]

Everything that decides is here: secret values, reference, comparison, the wall clock. The child is asked for output
bytes and for event readings; the latter count only where the wall agrees (gpu/timing.py). Outputs come back through an
arena of the candidate's own, filled with NaN before. Blocking; one candidate at a time per stage, several stages may
share a GPU and take turns by the lease.

Device memory. Besides contexts, there stand: the arena of inputs; one child's outputs and temporaries (gpu/turns.py);
in comparing one part of them and of the reference (gpu/device_compare.py). What does not fit is told with numbers.
"""

import contextlib
import random
import time
from functools import partial
from typing import Any

import msgspec
import torch

from core.evaluation.findings import Finding
from core.evaluation.gpu import correct as gpu_correct
from core.evaluation.gpu import cuda_on_gpu, timing
from core.evaluation.gpu import faults as gpu_faults
from core.evaluation.gpu import precision as gpu_precision
from core.evaluation.gpu import warm as gpu_warm
from core.evaluation.gpu.accounts import Accounts
from core.evaluation.gpu.clock import GpuSettings as GpuSettings
from core.evaluation.gpu.condition import RAN_ON
from core.evaluation.gpu.counters import Counters
from core.evaluation.gpu.device_memory import DriverError
from core.evaluation.gpu.device_reference import Aside, Samples
from core.evaluation.gpu.hidden import HiddenSizes
from core.evaluation.gpu.honesty import Honesty, NoProfileError, UnbuildableError
from core.evaluation.gpu.lease import lease
from core.evaluation.gpu.measure import Measuring
from core.evaluation.gpu.outputs import Outputs
from core.evaluation.gpu.quiet import NeverQuietError, Quiet
from core.evaluation.gpu.spawn import UNENDED, ChildFailed, GpuZygote
from core.evaluation.gpu.task import HUGE_BYTES, LEAN_BYTES, GpuTask
from core.evaluation.gpu.troubles import DoesNotFitError, Troubles, failed_verdict, infra_verdict
from core.evaluation.gpu.turns import Turns
from core.evaluation.screens import screen
from core.evaluation.source_text import without_mark
from core.evaluation.spawn import ZygoteError
from core.evaluation.verdict import Verdict
from core.evaluation.waits import BUILD_S
from core.evaluation.walls import sandbox
from core.tasks.format import TaskError
from core.tasks.task import Task


class GpuStage(Troubles):
    """One GPU's tier in one process."""

    def __init__(
        self, settings: GpuSettings, walls: sandbox.Walls, slot: int = 0,
        huge_bytes: int = HUGE_BYTES, lean_bytes: int = LEAN_BYTES,
    ) -> None:  # fmt: skip
        self._huge_bytes, self._lean_bytes = huge_bytes, lean_bytes
        self.settings, self.walls = settings, walls
        self.candidates, self.baselines = GpuZygote(walls, slot), GpuZygote(walls, slot + 1, baseline=True)
        self._turns = Turns(settings.device, [self.candidates, self.baselines])
        self._task: tuple[str, GpuTask] | None = None
        self._hidden: HiddenSizes | None = None
        self._refused: dict[str, str] = {}
        """Sources that do not fit this GPU, and why."""
        self._rng = random.SystemRandom()
        self._out: Outputs | None = None
        self.accounts = Accounts(settings.device)
        """Where the latest candidate's time and memory went."""
        self._clock = Measuring(settings, self.baselines, self._rng, self._limits, self._spent, self._turns)
        self._honesty = Honesty(settings.device)
        self._counters = Counters(device=settings.device)
        self.flags: dict[str, Any] = {}
        """Precision switches while the latest candidate was judged: of this process (`trusted`), and as the children
        say of theirs (`candidate`, `baseline`)."""
        self._renew = False
        """A zygote is gone or has a child that would not end: both are to be started again."""
        self._held_gb = 0.0
        """Device memory that the latest candidate's end set free."""
        self.broken = ""
        """Why this process can't judge any more (its own CUDA context is lost): replace it."""

    def watch_quiet(self, quiet: Quiet) -> None:
        """Measure only while `quiet` sees no other process's kernels; `judge` then raises TimeoutError when there is no
        quiet to be had."""
        self._clock.quiet = self._honesty.quiet = quiet

    @property
    def spent_s(self) -> dict[str, float]:
        """Seconds of the latest candidate, by phase."""
        return {name: phase.seconds for name, phase in self.accounts.phases.items()}

    @property
    def peak_gb(self) -> dict[str, float]:
        """Most device memory of this process's tensors meanwhile; children and arenas come on top."""
        return {name: phase.own_gb for name, phase in self.accounts.phases.items()}

    @property
    def measured(self) -> timing.Measured | None:
        """The latest candidate's measurement."""
        return self._clock.measured

    def start(self) -> None:
        for zygote in (self.candidates, self.baselines):
            zygote.start()

    def wait_ready(self) -> None:
        for zygote in (self.candidates, self.baselines):
            zygote.wait_ready()
        if self.settings.warm_up and self.settings.device != "cpu":
            quiet, self._clock.quiet, self._honesty.quiet = self._clock.quiet, None, None
            self._clock.warming = True
            for source in gpu_warm.CANDIDATES:
                with contextlib.suppress(TimeoutError):  # beside others' kernels too: nobody waits for quiet
                    self.judge(gpu_warm.TASK, source, "warm-up")
            self._clock.warming = False
            self._clock.quiet = self._honesty.quiet = quiet
            self._forget()

    def stop(self) -> None:
        """Whatever state this process is in: a lost context lets nothing be unmapped."""
        try:
            with contextlib.suppress(RuntimeError):
                self._drop_output()
                self._forget()
                self._clock.close()
        finally:
            for zygote in (self.candidates, self.baselines):
                zygote.stop()

    def judge(self, task: Task, candidate: str, key: str, timed: bool = True) -> Verdict:
        """The verdict; without `timed` of correctness alone. Never raises for what a task or a candidate does."""
        started = time.monotonic()
        self.accounts.renew()
        self.flags, self._clock.measured = {}, None
        candidate = without_mark(candidate)
        refused, screens = screen(candidate, task.backend)
        try:
            if refused is not None:
                verdict = failed_verdict(key, refused, "static")
            elif self.broken:
                verdict = infra_verdict(key, self.broken)
            else:
                verdict = self._tried(task, candidate, key, timed)
        except (DoesNotFitError, UnbuildableError) as error:
            finding = Finding(stage="load", category="unsupported", headline=str(error), kind="unsupported")
            verdict = failed_verdict(key, finding)
        except TaskError as error:
            verdict = infra_verdict(key, str(error), "task_error")
        except (NoProfileError, ZygoteError) as error:
            verdict = infra_verdict(key, str(error))
        screens = (*screens, *verdict.screens)
        return msgspec.structs.replace(verdict, screens=screens, wall_s=round(time.monotonic() - started, 4))

    # --- one candidate ---

    def _tried(self, task: Task, candidate: str, key: str, timed: bool) -> Verdict:
        """With new zygotes once more where one is gone. Raises ZygoteError; then the next candidate has new ones."""
        if self._renew:
            self._new_zygotes()
        try:
            return self._judge(task, candidate, key, timed)
        except ZygoteError as error:
            self._renew = True
            if UNENDED in str(error):  # that process may be on the GPU still: the GPU's health comes first
                raise
        self._new_zygotes()
        return self._judge(task, candidate, key, timed)

    def _new_zygotes(self) -> None:
        """End both, and what their children hold; start others."""
        for zygote in (self.candidates, self.baselines):
            zygote.stop()
        self._clock.forget()
        self._drop_output()
        for zygote in (self.candidates, self.baselines):
            zygote.start()
        for zygote in (self.candidates, self.baselines):
            zygote.wait_ready()
        self._renew = False

    def _judge(self, task: Task, candidate: str, key: str, timed: bool) -> Verdict:
        prepared: GpuTask | None = None
        self._held_gb = 0.0
        try:
            self._make_room(task)
            with self._spent("task"), lease(self.settings.device) as held:
                if self._turns.lean:
                    self._turns.rest()
                if self._task is None:
                    prepared = self._prepare(task, held.aside)  # its values are new
                else:
                    prepared = self._task[1]
                    with prepared.yielding(held.aside):
                        prepared.renew()
                gpu_precision.apply(prepared.reference.flags)
                self.flags["trusted"] = gpu_precision.read()
            verdict = self._run(prepared, candidate, task.backend, key, timed)
            if self.settings.counters and verdict.kind == "pass" and timed:
                verdict = self._counted(task, verdict, candidate)
            if self.settings.spare:
                self.candidates.ahead(self._limits(), "start", self.settings.device, prepared.reference.flags)
            return self._clock.others(prepared, self._clock.confirmed(prepared, verdict))
        except (TaskError, ZygoteError, NoProfileError, UnbuildableError):
            raise
        except (RuntimeError, DriverError) as error:
            return self._own_trouble(task, prepared, key, error)

    def _run(self, task: GpuTask, candidate: str, backend: str, key: str, timed: bool) -> Verdict:
        verdict = Verdict(candidate_key=key, kind="pass", tier="gpu", compiled=True, correct=True, feedback="correct")
        try:
            if timed:
                self._clock.begin(task)
            try:
                samples, finding, places = self._correct(task, candidate, backend)
                if finding is None and timed:
                    verdict = self._measure(task, key, samples, places)
                    finding = self._after(task) if verdict.kind == "pass" else None
                if finding is None and verdict.kind == "pass" and self.settings.own_work:
                    finding = self._own_work(task, candidate, backend, places)
                    verdict = self._with_lines(verdict, candidate, backend)
            finally:
                self._end_candidate()
        except NeverQuietError:  # its process is gone by now: if it is quiet at last, those kernels were its own
            with lease(self.settings.device, alone=True):
                if self._clock.quiet is None or self._clock.quiet.busy():
                    raise
            finding = Finding(stage="timing", category="tampering", headline=RAN_ON)
        except ChildFailed as failure:
            if failure.baseline:
                return self._baseline_failed(task, failure, key)
            built = cuda_on_gpu.finding(failure.error, candidate) if failure.error else None
            finding = built or gpu_faults.finding_of(
                failure, self.settings.wall_s, self.settings.memory_mb, candidate, task.needs.describe()
            )
        return verdict if finding is None else failed_verdict(key, finding)

    def _own_work(self, task: GpuTask, candidate: str, backend: str, places: list[torch.Tensor]) -> Finding | None:
        """Who did the work; the candidate's child may be gone after it."""
        assert self._out is not None
        with self._spent("own work"):
            measured = self.measured
            timed = (measured.runtime_ms, measured.baseline_ms) if measured is not None else None
            return self._honesty.after(
                task, self.candidates, self._out, candidate, backend, places, timed, self.settings.profile_lines
            )

    def _with_lines(self, verdict: Verdict, candidate: str, backend: str) -> Verdict:
        lines = self._honesty.lines(candidate, backend) if self.settings.profile_lines else ""
        return msgspec.structs.replace(verdict, feedback=f"{verdict.feedback}\n{lines}") if lines else verdict

    def _counted(self, task: Task, verdict: Verdict, candidate: str) -> Verdict:
        """With hardware counters in the feedback; the candidate's timed child is gone."""
        with self._spent("counters"):
            lines = self._counters.lines(
                self.candidates, self._limits(), task.source, self.settings.profile, candidate, task.backend
            )
        return msgspec.structs.replace(verdict, feedback=f"{verdict.feedback}\n{lines}") if lines else verdict

    def _end_candidate(self) -> None:
        """End the child, and note what this set free, as far as this GPU's other processes hold still."""
        before = self._in_use()
        try:
            if self.candidates.running:
                self.candidates.end()
        finally:
            self._drop_output()
        self._held_gb = (before - self._in_use()) / 1e9

    def _in_use(self) -> int:
        if self.settings.device == "cpu" or self.broken:
            return 0
        with contextlib.suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info(torch.device(self.settings.device))
            return int(total - free)
        return 0

    def _limits(self) -> sandbox.Limits:
        settings = self.settings
        return sandbox.Limits(
            memory_mb=settings.memory_mb, wall_s=settings.wall_s, compilers_s=BUILD_S, tmp_mb=512, threads=512,
            allow_processes=True, device=settings.device != "cpu",
        )  # fmt: skip

    def _load(self, zygote: GpuZygote, task: GpuTask, source: str, backend: str) -> None:
        """Fork a child, import, construct, give it inputs and parameters."""
        with self._spent("start"):
            zygote.begin(self._limits(), "start", self.settings.device, task.reference.flags)
            zygote.settle()
        if self.settings.own_work:
            self._honesty.arrange(zygote, backend)
        with self._spent("import"):
            zygote.ask("import", source)
            if self.settings.own_work:
                self._honesty.imported(zygote, self.settings.wall_s)
            gpu_correct.construct(zygote, task)

    def _share(self, zygote: GpuZygote, name: str, arena: Any) -> None:
        zygote.share(name, arena)
        zygote.settle()
        if self._out is not None and self._out.arena is arena:
            self._out.bind(zygote, self._turns)
        self.accounts.arenas_gb[f"{name} of the candidate"] = arena.nbytes / 1e9

    def _drop_output(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None

    def _correct(
        self, task: GpuTask, candidate: str, backend: str
    ) -> tuple[list[list[Samples]], Finding | None, list[torch.Tensor]]:
        """Three calls; samples per set for the timed calls, or what is wrong."""
        self._drop_output()
        reference = task.reference
        buffers = {name: reference.built.base[name] for name in reference.changed_buffers}
        split = reference.split if task.lean else None
        self._out = Outputs(self.settings.device, reference.outputs, split=split, buffers=buffers)
        self._load(self.candidates, task, candidate, backend)
        self._share(self.candidates, "out", self._out.arena)
        fresh = partial(self._honesty.renew_memory, self.candidates, task) if self.settings.own_work else None
        calls = gpu_correct.Calls(task, self.candidates, self._out, self._spent, fresh)
        samples, finding = calls.all()
        if finding is None and self._hidden is not None:
            with self._spent("hidden"):
                finding = self._hidden.check(self.candidates, self._spent)
        self.flags["candidate"] = self.candidates.ask("precision") if finding is None else None
        return samples, finding, calls.places

    def _after(self, task: GpuTask) -> Finding | None:
        """What timed calls left: switches as they were, inputs as they were."""
        finding = gpu_correct.flags_differ(self.candidates, task.reference.flags)
        self.accounts.note_child("candidate", self.candidates.ask("held"))
        self.accounts.note_child("baseline", self.baselines.ask("held"))
        self.flags["baseline"] = self.baselines.ask("precision")
        if finding is None:
            with self._spent("wait"), lease(self.settings.device):
                touched = task.touched()
            if touched is not None:
                text = f"a timed call changed its input {touched}"
                finding = Finding(stage="timing", category="input_mutated", headline=text)
        return finding

    # --- clocks ---

    def _measure(self, task: GpuTask, key: str, samples: list[list[Samples]], places: list[torch.Tensor]) -> Verdict:
        assert self._out is not None
        found = self._clock.verdict(task, key, self.candidates, self._out, samples, places)
        return failed_verdict(key, found) if isinstance(found, Finding) else found

    # --- tasks ---

    def _make_room(self, task: Task) -> None:
        """Let go of another task's memory and child; no lease is needed for that. Raises DoesNotFitError."""
        if self._task is not None and self._task[0] == task.source:
            return
        if task.source in self._refused:
            raise DoesNotFitError(self._refused[task.source])
        self._forget()

    def _prepare(self, task: Task, aside: Aside = contextlib.nullcontext) -> GpuTask:
        """The task on the device; under the lease, which `aside` lets go of while the CPU alone has work."""
        if self._task is not None and self._task[0] == task.source:
            return self._task[1]
        settings = self.settings
        try:
            prepared = GpuTask(
                task.source, task.name, settings.profile, settings.device, settings.part_elements,
                huge_bytes=self._huge_bytes, lean_bytes=self._lean_bytes, aside=aside,
            )  # fmt: skip
        except TaskError:
            raise
        except Exception as error:  # the task's own code may raise anything
            if gpu_faults.out_of_memory(error) or gpu_faults.broken(error):
                raise
            raise TaskError(f"task {task.task_id} does not run: {type(error).__name__}: {error}") from error
        self._task = (task.source, prepared)
        with aside():
            self._hidden = HiddenSizes(prepared, settings.profile)
        self._turns.lean = prepared.lean
        self.accounts.arenas_gb = {"inputs": prepared.arena.nbytes / 1e9}
        return prepared

    def _forget(self) -> None:
        self._clock.forget()
        if self._task is not None:
            self._task[1].close()
            self._task = self._hidden = None
        self._turns.lean = False
        if self.settings.device != "cpu" and not self.broken:
            torch.cuda.empty_cache()

    def _spent(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self.accounts.phase(name)
