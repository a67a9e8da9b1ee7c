"""The GPU tier: a candidate run for real in a confined child; outputs compared and speed measured by this process.

    fork -> import -> construct -> call set 0 -> new values in set 0's memory, call again -> call set 1
         -> [lease of the GPU: B C C B blocks beside the eager baseline, samples of every timed call, one whole output]

Everything that decides is here: secret values, reference, comparison, the wall clock. The child is asked for output
bytes and for event readings; the latter count only where the wall agrees (timing.py). Outputs come back through an
arena of the candidate's own, filled with NaN before. Blocking; one candidate at a time per stage, several stages may
share a GPU and take turns by the lease.
"""

import contextlib
import fcntl
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch

from core.evaluation import device_memory, diagnosis, host_memory, sandbox, timing
from core.evaluation.device_reference import PART_ELEMENTS, Samples, trees_like
from core.evaluation.findings import Finding, feedback_text
from core.evaluation.gpu_spawn import ChildFailed, GpuZygote
from core.evaluation.gpu_task import MAX_CALLS, MAX_PLACES, SETS, GpuTask, Place
from core.evaluation.screens import screen
from core.evaluation.source_text import without_mark
from core.evaluation.spawn import ZygoteError
from core.evaluation.verdict import Verdict
from core.tasks.format import TaskError
from core.tasks.task import Task

PLACES = 16
"""Elements of every timed call's output that are compared."""


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
    gb_per_s: float = 3350.0
    matrix_tflops: float = 989.0
    """Of the floor: the fastest that the matrix units do in any allowed precision."""
    l2_mb: float = 50.0


class Timed(msgspec.Struct, kw_only=True):
    """What a clean baseline child was found to do; kept per task."""

    flush_ms: float
    idle_ms: float
    baseline_ms: float


class GpuStage:
    """One GPU's tier in one process."""

    def __init__(self, settings: GpuSettings, walls: sandbox.Walls, slot: int = 0) -> None:
        self.settings, self.walls = settings, walls
        self._candidates, self._baselines = GpuZygote(walls, slot), GpuZygote(walls, slot + 1)
        self._task: tuple[str, GpuTask] | None = None
        self._timed: dict[str, Timed] = {}
        self._rng = random.SystemRandom()
        self._out: Any = None
        self.spent_s: dict[str, float] = {}
        """Where the latest candidate's time went."""

    def start(self) -> None:
        for zygote in (self._candidates, self._baselines):
            zygote.start()

    def wait_ready(self) -> None:
        for zygote in (self._candidates, self._baselines):
            zygote.wait_ready()

    def stop(self) -> None:
        self._forget()
        for zygote in (self._candidates, self._baselines):
            zygote.stop()

    def judge(self, task: Task, candidate: str, key: str, timed: bool = True) -> Verdict:
        """The verdict; without `timed` of correctness alone."""
        started = time.monotonic()
        self.spent_s = {}
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
        return msgspec.structs.replace(verdict, screens=screens, wall_s=round(time.monotonic() - started, 4))

    # --- one candidate ---

    def _judge(self, task: Task, candidate: str, key: str, timed: bool) -> Verdict:
        with self._spent("task"):
            prepared = self._prepare(task)
            prepared.renew()
        try:
            try:
                samples, finding, places = self._correct(prepared, candidate)
                if finding is None and timed:
                    return self._measure(prepared, key, samples, places)
            finally:
                if self._candidates.running:
                    self._candidates.end()
                self._drop_output()
        except ChildFailed as failure:
            finding = self._failure(failure)
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
            zygote.begin(self._limits())
            zygote.ask("start", self.settings.device)
        with self._spent("import"):
            zygote.ask("import", source)
            init = task.reference.init
            tree = ["list", [["list", [_plain(part) for part in init[0]]],
                             ["dict", {name: _plain(part) for name, part in init[1].items()}]]]  # fmt: skip
            zygote.ask("construct", tree)
        self._share(zygote, "inputs", task.arena)
        zygote.ask("inputs", task.input_trees())
        zygote.ask("state", task.state_trees(), task.reference.built.required)

    @staticmethod
    def _share(zygote: GpuZygote, name: str, arena: Any) -> None:
        descriptor = arena.descriptor()
        try:
            zygote.ask("memory", name, arena.nbytes, descriptors=(descriptor,))
        finally:
            os.close(descriptor)

    def _output_arena(self, task: GpuTask) -> None:
        """The candidate's own: outputs, places of samples, samples."""
        self._drop_output()
        self._output_specs, end = device_memory.layout(task.reference.outputs)
        count = len(task.reference.outputs)
        places = [torch.empty(PLACES, dtype=torch.int64, device="meta")] * count
        self._place_specs, end = device_memory.layout(places, end)
        rows = [torch.empty(MAX_CALLS, PLACES, dtype=t.dtype, device="meta") for t in task.reference.outputs]
        self._sample_specs, end = device_memory.layout(rows, end)
        self._out = host_memory.create(self.settings.device, end)

    def _drop_output(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None

    def _correct(self, task: GpuTask, candidate: str) -> tuple[list[list[Samples]], Finding | None, list[torch.Tensor]]:
        """Three calls; samples per set for the timed calls, or what is wrong."""
        self._output_arena(task)
        self._load(self._candidates, task, candidate)
        self._share(self._candidates, "out", self._out)
        total = MAX_PLACES
        places = [
            torch.randint(0, max(1, t.numel()), (total,), device=self.settings.device) for t in task.reference.outputs
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
        child, reference = self._candidates, task.reference
        with self._spent("call"):
            child.ask("state", task.state_trees(), reference.built.required)
            structure, kinds = _checked_answer(child.ask("call", which, reference.training, False))
        wanted = [[str(t.dtype).removeprefix("torch."), list(t.shape), torch.device(task.device).type]
                  for t in reference.outputs]  # fmt: skip
        if kinds != wanted:
            return [], _types_differ(kinds, wanted)
        with self._spent("copy"):
            outputs = [self._out.tensor(spec) for spec in self._output_specs]
            for tensor in outputs:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
            task.idle()
            child.ask("take", [Place(arena="out", spec=spec).tree() for spec in self._output_specs])
            child.ask("free")
        with self._spent("compare"):
            if not task.intact():
                text = "forward changed its inputs"
                return [], Finding(stage="correctness", category="input_mutated", headline=text)
            whole = trees_like(structure, outputs)
            del whole
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
        with self._spent("baseline"):
            timed = self._baseline(task)
        with self._spent("lease"), lease(self.settings.device):
            result = self._rounds(task, timed, samples, places)
            if not isinstance(result, Finding) and not result.steady:
                result = self._rounds(task, timed, samples, places)
        if isinstance(result, Finding):
            return _failed(key, result)
        text = (
            f"correct: {result.speedup:.2f}x over eager PyTorch (at least {result.speedup_low:.2f}x)\n"
            f"{result.runtime_ms:.4g} ms, eager {result.baseline_ms:.4g} ms; "
            f"{100 * result.roofline_share:.0f} % of what the GPU allows ({result.floor_ms:.4g} ms)."
        )
        return Verdict(
            candidate_key=key, kind="pass", tier="gpu", compiled=True, correct=True, feedback=text,
            speed_kind="measured", speedup=round(result.speedup, 4), speedup_low=round(result.speedup_low, 4),
            runtime_ms=result.runtime_ms, baseline_ms=result.baseline_ms,
        )  # fmt: skip

    def _baseline(self, task: GpuTask) -> Timed:
        """A child with the reference itself, alive as long as its task; it has its own samples' arena."""
        if not self._baselines.running:
            self._load(self._baselines, task, task.source + "\n\nModelNew = Model\n")
            specs, end = device_memory.layout(
                [torch.empty(PLACES, dtype=torch.int64, device="meta")] * len(task.reference.outputs)
            )
            rows = [torch.empty(MAX_CALLS, PLACES, dtype=t.dtype, device="meta") for t in task.reference.outputs]
            more, end = device_memory.layout(rows, end)
            self._base_arena, self._base_specs = host_memory.create(self.settings.device, end), (specs, more)
            for spec in specs:
                self._base_arena.tensor(spec).zero_()
            task.idle()
            self._share(self._baselines, "out", self._base_arena)
            self._baselines.deadline = time.monotonic() + 3600
        child = self._baselines
        child.ask("state", task.state_trees(), task.reference.built.required)
        known = self._timed.get(task.source)
        if known is None:
            trees = [[Place(arena="out", spec=spec).tree() for spec in specs] for specs in self._base_specs]
            child.ask("call", 0, task.reference.training, False)
            child.ask("call", 1, task.reference.training, False)
            with lease(self.settings.device):
                idle = min(_clock(child, "flushes", 0, *trees) for _ in range(5))
                flush = min((_clock(child, "flushes", 20, *trees) - idle) / 20 for _ in range(3))
            known = Timed(flush_ms=flush, idle_ms=idle, baseline_ms=0.0)
            self._timed[task.source] = known
        return known

    def _rounds(
        self, task: GpuTask, timed: Timed, samples: list[list[Samples]], places: list[torch.Tensor]
    ) -> timing.Measured | Finding:
        """All blocks of one measurement; a wrong output of a timed call is a finding."""
        protocol = self.settings.protocol
        base_trees = [[Place(arena="out", spec=spec).tree() for spec in specs] for specs in self._base_specs]
        own_trees = [[Place(arena="out", spec=spec).tree() for spec in specs]
                     for specs in (self._place_specs, self._sample_specs)]  # fmt: skip
        estimates = {}
        for side, child, trees in (
            ("candidate", self._candidates, own_trees),
            ("baseline", self._baselines, base_trees),
        ):
            self._choose(places)
            total = min(_clock(child, "block", 1, 0, -1, *trees) for _ in range(2))
            estimates[side] = timing.flushed(total, timed.flush_ms, timed.idle_ms, 1)
        calls = timing.calls_per_block(protocol, estimates["baseline"], estimates["candidate"], timed.flush_ms)
        calls = min(calls, MAX_CALLS)
        blocks: list[timing.Block] = []
        order = timing.plan(protocol.rounds, self._rng)
        candidate_turns = [index for index, (_, side) in enumerate(order) if side == "candidate"]
        whole = self._rng.choice(candidate_turns)
        for index, (number, side) in enumerate(order):
            first = self._rng.randrange(SETS)
            if side == "baseline":
                total = _clock(self._baselines, "block", calls, first, -1, *base_trees)
                events = _readings(self._baselines, calls)
            else:
                chosen = self._choose(places)
                keep = calls - 1 if task.huge else self._rng.randrange(calls)
                total = _clock(self._candidates, "block", calls, first, keep if index == whole else -1, *own_trees)
                events = _readings(self._candidates, calls)
                finding = self._compare_samples(samples, chosen, first, calls)
                if finding is None and index == whole:
                    finding = self._recheck(task, (first + keep) % SETS)
                if finding is not None:
                    return finding
            wall = timing.flushed(total, timed.flush_ms, timed.idle_ms, calls)
            blocks.append(timing.Block(side=side, round=number, events_ms=tuple(events), wall_ms=wall))
        self.blocks = blocks
        floor = timing.roofline_floor_ms(
            task.input_bytes, task.output_bytes, 0.0, self.settings.gb_per_s, self.settings.matrix_tflops,
            self.settings.l2_mb * 2**20,
        )  # fmt: skip
        return timing.measured(blocks, floor, np.random.default_rng(self._rng.randrange(2**32)))

    def _choose(self, places: list[torch.Tensor]) -> torch.Tensor:
        """Places of the next block's samples, unknown to the child until now; as numbers into `places`."""
        chosen = torch.tensor(self._rng.sample(range(MAX_PLACES), PLACES), device=self.settings.device)
        for spec, all_places in zip(self._place_specs, places, strict=True):
            self._out.tensor(spec).copy_(all_places[chosen])
        for spec in self._sample_specs:
            rows = self._out.tensor(spec)
            rows.fill_(float("nan") if rows.is_floating_point() else 0)
        if self.settings.device != "cpu":
            torch.cuda.synchronize()
        return chosen

    def _compare_samples(
        self, samples: list[list[Samples]], chosen: torch.Tensor, first: int, calls: int
    ) -> Finding | None:
        for number, spec in enumerate(self._sample_specs):
            rows = self._out.tensor(spec)[:calls]
            for which in range(SETS):
                mine = rows[(which - first) % SETS :: SETS].double()
                right = samples[which][number]
                wanted, allowed = right.wanted[chosen].double(), right.allowed[chosen]
                off = (mine - wanted).abs()
                bad = ~(off <= allowed) & torch.isfinite(wanted)
                if bool(bad.any()):
                    text = f"{int(bad.any(1).sum())} of {len(mine)} timed calls gave another output than the right one"
                    detail = "Calls are timed on other inputs in turn; each must compute its own output."
                    return Finding(stage="timing", category="wrong_value", headline=text, detail=detail)
        return None

    def _recheck(self, task: GpuTask, which: int) -> Finding | None:
        """The whole output of one timed call."""
        outputs = [self._out.tensor(spec) for spec in self._output_specs]
        for tensor in outputs:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        task.idle()
        self._candidates.ask("take", [Place(arena="out", spec=spec).tree() for spec in self._output_specs])
        nowhere = [torch.zeros(0, dtype=torch.int64, device=self.settings.device)] * len(outputs)
        finding, _ = task.reference.check(task.values(which), outputs, nowhere, "A timed call's output.")
        return None if finding is None else msgspec.structs.replace(finding, stage="timing")

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
        if self._baselines.running:
            self._baselines.end()
        if self._task is not None:
            self._task[1].close()
            self._task = None
            if self.settings.device != "cpu":
                torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _spent(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.spent_s[name] = self.spent_s.get(name, 0.0) + time.monotonic() - started


@contextlib.contextmanager
def lease(device: str) -> Iterator[None]:
    """One process at a time measures on a GPU of this machine; the kernel lets go when a process dies."""
    index = torch.device(device).index or 0
    name = "cpu" if device == "cpu" else str(torch.cuda.get_device_properties(index).uuid)
    path = os.path.join(tempfile.gettempdir(), f"kernelmill-{os.getuid()}-lease-{name}")
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


def _plain(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "tuple", [_plain(part) for part in value]]
    if isinstance(value, dict):
        return ["dict", {str(key): _plain(part) for key, part in value.items()}]
    return ["value", value]


def _checked_answer(answer: Any) -> tuple[Any, list[Any]]:
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[1], list):
        raise ChildFailed("call", error={"type": "Garbled", "message": "no answer of ours"})
    return answer[0], answer[1]


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
