"""One judge: a task and a candidate in, a verdict out. The trusted side of one worker process.

    reference, static screen -> secret draws -> child (interpreter) -> compare -> cross-compile -> modelled speed

Blocking, one candidate at a time. Whatever a candidate does becomes a `fail` of its own; trouble on our side is retried
with a new zygote and becomes `infra` when the retries are used up; neither leaves anything behind.
"""

import contextlib
import secrets
import time
from collections import OrderedDict
from functools import partial
from typing import Any

import msgspec

from core.evaluation import diagnosis, roofline, values
from core.evaluation.compilers.compile_stage import CompileStage
from core.evaluation.compilers.cuda_stage import CudaStage
from core.evaluation.draws import Draw, Drawn
from core.evaluation.findings import Finding, feedback_text
from core.evaluation.proof import prove
from core.evaluation.reference import Reference, TooLargeError, mutates_inputs
from core.evaluation.report import Report, read
from core.evaluation.screens import screen
from core.evaluation.settings import JudgeSettings
from core.evaluation.source_text import without_mark
from core.evaluation.spawn import Outcome, Zygote, ZygoteError
from core.evaluation.time_limit import TookTooLong, time_limit
from core.evaluation.verdict import Verdict
from core.evaluation.walls import sandbox
from core.tasks.format import TaskError
from core.tasks.task import Task

REFERENCE_S = 120.0
"""For a task's own code to load and to be counted, once in a worker's life: no sandbox ends it, as it would a
candidate. Less than `pool.longest_s` leaves for it."""
MAX_CONFIGURATIONS = 15
"""Of its autotuners, that a candidate is called with beside the first one."""
_CACHED_TASKS = 256
_WARM_UP = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(16)]
def get_init_inputs():
    return []
"""
"""torch imports a great deal at the first use of the meta device."""


class Prepared(msgspec.Struct, kw_only=True):
    """What is known of a task apart from secrets."""

    reference: Reference
    may_mutate: bool


def choose_walls(isolation: str) -> sandbox.Walls:
    """The walls that the settings ask for; raises OSError when `namespaces` is demanded and refused."""
    if isolation == "basic":
        return sandbox.probe("basic")
    walls = sandbox.probe()
    if isolation == "namespaces" and walls.level != "namespaces":
        raise OSError(
            "judge.isolation = 'namespaces', but this machine refuses them: see `kernelmill doctor`, or use 'auto'"
        )
    return walls


class Judge:
    """One zygote, one candidate at a time."""

    def __init__(self, settings: JudgeSettings, slot: int = 0) -> None:
        self.settings = settings
        self.walls = choose_walls(settings.isolation)
        self.preparing = False
        """The task's own code is what is waited for, REFERENCE_S at most."""
        self._slot = slot
        self._zygote = Zygote("interpret", self.walls, slot)
        self._compile = CompileStage(settings, self.walls, slot) if settings.target else None
        self._cuda = CudaStage(settings, self._compile.zygote) if self._compile else None
        self._tasks: OrderedDict[str, Prepared | TaskError] = OrderedDict()

    @property
    def _zygotes(self) -> list[Zygote]:
        return [self._zygote, self._compile.zygote] if self._compile else [self._zygote]

    def start(self) -> None:
        """Start the zygotes; they import on their own while this process does something else."""
        for zygote in self._zygotes:
            zygote.start()

    def wait_ready(self) -> None:
        """Returns when the zygotes are ready; this process does its own first-time work meanwhile. Raises OSError when
        this judge can't tell right from wrong here."""
        with contextlib.suppress(TaskError):
            reference = Reference(_WARM_UP, "warm-up", self.settings.profile)
            reference.draws(self.settings.draws)
            reference.full_work()
        for zygote in self._zygotes:
            zygote.wait_ready()
        if self._slot == 0:  # the others are made of the same
            self.prove()

    def prove(self) -> None:
        """Raises Unproven where this judge can't tell right from wrong."""
        prove(self)

    def stop(self) -> None:
        for zygote in self._zygotes:
            zygote.stop()

    def rest(self) -> None:
        """Between two candidates; there is nothing to tidy up."""

    def judge(self, task: Task, candidate: str, key: str) -> Verdict:
        """The verdict; never raises for anything that a task or a candidate does."""
        started = time.monotonic()
        verdict = self._judge(task, candidate, key)
        return msgspec.structs.replace(verdict, wall_s=round(time.monotonic() - started, 4))

    def _judge(self, task: Task, candidate: str, key: str) -> Verdict:
        candidate = without_mark(candidate)
        refused, screens = screen(candidate, task.backend)
        try:  # first: of a task that does not run, no candidate is scored, whatever its text looks like
            prepared = self._prepare(task)
        except TooLargeError as error:
            finding = Finding(stage="load", category="unsupported", headline=str(error), kind="unsupported")
            return self._failed(key, refused or finding, screens, tier="static" if refused else "cpu")
        except TaskError as error:
            return self._infra(key, str(error), "task_error")
        if refused is not None:
            return self._failed(key, refused, screens, tier="static")
        trouble = ""
        for attempt in range(self.settings.retries + 1):
            if attempt:
                self.stop()
                self.start()
            try:
                return self._attempt(key, task, candidate, prepared, screens)
            except ZygoteError as error:
                trouble = str(error)
        return self._infra(key, trouble)

    def _prepare(self, task: Task) -> Prepared:
        known = self._tasks.get(task.source)
        if known is None:
            self.preparing = True
            try:
                with time_limit(REFERENCE_S):
                    reference = Reference(task.source, task.name, self.settings.profile)
                    known = Prepared(reference=reference, may_mutate=mutates_inputs(reference))
            except TaskError as error:
                known = error
            except TookTooLong:
                known = TaskError(f"task {task.task_id} does not run: it was not ready after {REFERENCE_S:.0f} s")
            except (Exception, SystemExit) as error:  # the task's own code may raise anything
                known = TaskError(f"task {task.task_id} does not run: {type(error).__name__}: {error}")
            finally:
                self.preparing = False
            self._tasks[task.source] = known
            if len(self._tasks) > _CACHED_TASKS:
                self._tasks.popitem(last=False)
        else:
            self._tasks.move_to_end(task.source)
        if isinstance(known, TaskError):
            raise known
        return known

    def _attempt(self, key: str, task: Task, candidate: str, prepared: Prepared, screens: tuple[str, ...]) -> Verdict:
        settings = self.settings
        drawn = prepared.reference.draws(settings.draws)
        draws = drawn.draws
        ghost = secrets.choice([index for index, draw in enumerate(draws) if draw.variant == 0])
        expected = sum(tensor.nbytes for draw in draws for tensor in draw.expected.native)
        most = 4 * expected + 2**20
        header, blobs = job(candidate, task.backend, drawn, ghost, most)
        limits = sandbox.Limits(memory_mb=settings.memory_mb, wall_s=settings.wall_s)
        # With a target, the launches of the whole run are wanted: they are compiled whatever came out.
        settled = partial(diagnosis.settles, draws=draws, may_mutate=prepared.may_mutate)
        outcome = self._zygote.run(
            header,
            blobs,
            limits,
            settings.output_kb,
            result_mb=8 + most * (len(draws) + 1 + MAX_CONFIGURATIONS) // 2**20,
            enough=None if self._compile else settled,
        )
        try:
            report = read(outcome)
        except (ValueError, TypeError, RecursionError) as error:  # msgspec's ValidationError is a ValueError
            text = f"the executor was made to report nonsense: {error}"
            forged = Finding(stage="correctness", category="tampering", headline=text)
            return self._failed(key, forged, screens)
        finding = self._diagnose(outcome, report, draws, prepared, screens, ghost)
        compiled = report.launched
        if report.extensions and (report.error is None or report.error.type == "NeedsGpuError"):
            return self._extensions(key, report, candidate, screens)
        if self._compile is not None:
            refusal = None
            if report.launches:
                refusal = self._compile.check(report.definitions, report.launches, candidate).finding
            compiled = bool(report.launches) and refusal is None
            finding = refusal or finding
        if finding is not None:
            return self._failed(key, finding, screens, compiled=compiled)
        calls = sum(draw.work_ratio for draw in draws)
        return self._passed(key, prepared, report, screens, calls, ghost)

    def _extensions(self, key: str, report: Report, candidate: str, screens: tuple[str, ...]) -> Verdict:
        """CUDA C++ that was reached: it is compiled, and can't be run without a GPU."""
        if self._cuda is None:
            text = "CUDA C++ needs a GPU to run: give a target (cuda:90) to have it compiled at least"
            finding = Finding(stage="compile", category="unsupported", headline=text, kind="unsupported")
            return self._failed(key, finding, screens)
        compiled = self._cuda.check(report.extensions, candidate)
        assert compiled.finding is not None
        return self._failed(key, compiled.finding, screens, compiled=compiled.compiled)

    def _diagnose(
        self, outcome: Outcome, report: Report, draws: list[Draw], prepared: Prepared,
        screens: tuple[str, ...], ghost: int,
    ) -> Finding | None:  # fmt: skip
        settings = self.settings
        if report.error is not None:
            raised = diagnosis.error_finding(report.error, screens, settings.memory_mb)
            if report.error.phase == "configuration":
                detail = f"{raised.detail} In another configuration of its autotuner than the first.".strip()
                raised = msgspec.structs.replace(raised, detail=detail)
            excused = raised.kind == "unsupported"
            return (diagnosis.wrong_already(report, draws, prepared.may_mutate) if excused else None) or raised
        if outcome.cut_short:
            return diagnosis.wrong_already(report, draws, prepared.may_mutate)
        finding = diagnosis.ending(outcome, report, settings.wall_s, settings.memory_mb)
        if finding is None:
            assert prepared.reference.work is not None
            finding = diagnosis.outputs(report, draws, prepared.reference.work, prepared.may_mutate, ghost)
        return finding

    def _passed(
        self, key: str, prepared: Prepared, report: Report, screens: tuple[str, ...], calls: float,
        judged: int,
    ) -> Verdict:  # fmt: skip
        settings = self.settings
        passed = Verdict(candidate_key=key, kind="pass", compiled=True, correct=True, screens=screens)
        if settings.speed == "none":
            return msgspec.structs.replace(passed, feedback="correct")
        model = modelled_speed(prepared.reference, report, settings, calls, judged)
        gpu = roofline.ROOFLINES.get(settings.target, roofline.ROOFLINES[roofline.DEFAULT])
        speedup = round(model.speedup, 4)
        text = (
            f"correct: modelled speedup {speedup:.2f}x over eager PyTorch\n"
            f"{gpu.name} roofline at full size: {model.candidate_ms:.4g} ms, eager {model.baseline_ms:.4g} ms, "
            f"bound {model.floor_ms:.4g} ms."
        )
        return msgspec.structs.replace(
            passed,
            feedback=text,
            speed_kind="modelled",
            speedup=speedup,
            speedup_low=speedup,
            runtime_ms=model.candidate_ms,
            baseline_ms=model.baseline_ms,
        )

    def _failed(
        self, key: str, finding: Finding, screens: tuple[str, ...], tier: Any = "cpu", compiled: bool = False
    ) -> Verdict:
        return Verdict(
            candidate_key=key,
            kind=finding.kind,
            tier=tier,
            stage=finding.stage,
            category=finding.category,
            compiled=compiled,
            feedback=feedback_text(finding),
            screens=screens,
        )

    @staticmethod
    def _infra(key: str, text: str, category: str = "infra") -> Verdict:
        return Verdict(candidate_key=key, kind="infra", stage="load", category=category, feedback=text[:400])


def job(candidate: str, backend: str, drawn: Drawn, ghost: int, most: int) -> tuple[dict[str, Any], list[bytes]]:
    """What the child gets: everything by value, no seed, no expected output."""
    blobs: list[bytes] = []
    position = 0

    def pack(value: Any) -> Any:
        nonlocal position
        tree, parts = values.encode(value, position)
        position += sum(map(len, parts))
        blobs.extend(parts)
        return tree

    header = {
        "source": candidate,
        "extensions": backend == "cuda",
        "ghost": ghost,
        "rechecks": rechecks(drawn),
        "configurations": MAX_CONFIGURATIONS,
        "max_output_bytes": most,
        "draws": [
            {
                "init": pack(draw.init),
                "variant": draw.variant,
                "required": draw.required,
                "inputs": pack(draw.inputs),
                "state": pack(draw.state),
                "plain": pack(draw.plain),
                "same_places": draw.same_places,
                "training": draw.training,
                "grad": draw.grad,
            }
            for draw in drawn.draws
        ],
    }
    return header, blobs


def rechecks(drawn: Drawn) -> list[int]:
    """Calls to make again at the end: one of the judged sizes, but not the last of them, twice in a row, then the last.
    A ring of old answers turns between the first two; the answer before is another one at the first and at the third.
    """
    judged = [index for index, draw in enumerate(drawn.draws) if draw.variant == 0]
    return [*[secrets.choice(judged[:-1] or judged)] * 2, judged[-1]]


def modelled_speed(
    reference: Reference, report: Report, settings: JudgeSettings, calls: float, judged: int
) -> roofline.Modelled:
    """Counts of one forward, on the target's roofline; `calls` counts the draws in units of the judged sizes."""
    assert report.trace is not None
    kernels = [
        roofline.KernelCounts(
            launches=max(0, kernel.launches) / settings.draws,
            sector_bytes=max(0, kernel.sector_bytes) / calls,
            traffic_bytes=max(0, kernel.traffic_bytes) / calls,
            flops=max(0, kernel.flops) / calls,
            dot_flops=max(0, kernel.dot_flops) / calls,
        )
        for kernel in report.trace.kernels
    ]
    operators = [
        (name, max(1, entry[0]), max(0, entry[1]), max(0, entry[2]))
        for name, entry in report.draws[judged][0].operators.items()
        if entry[1] > 0
    ]
    assert reference.work is not None
    return roofline.modelled(settings.target, reference.work, reference.full_work(), kernels, operators)
