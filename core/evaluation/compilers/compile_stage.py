"""The compile stage, trusted side: cross-compile what was launched for the run's target and hold it against its limits.

It closes the interpreter's false accepts: code that only Python understands, dots with K < 16, blocks that do not fit
into shared memory. The candidate is not imported: kernels are made from their recorded definitions. Launches whose
arguments can't be described to the compiler are skipped, never refused; what is recorded is compiled, no more.
"""

import errno
from typing import Any

import msgspec

from core.evaluation.compilers import compiler_text, resources
from core.evaluation.findings import Finding
from core.evaluation.kernel_source import MAX_LAUNCHES, Constant, KernelDefinition, Launch
from core.evaluation.settings import JudgeSettings, parse_target
from core.evaluation.spawn import Outcome, Zygote
from core.evaluation.walls import sandbox

_MEMORY_MB = 4096
TMP_MB = 256
"""What the compiler may write: intermediate code and the cubin."""
_NO_ROOM = f"[Errno {errno.ENOSPC}]"
_SIGPROF = 27


class CompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """What compiling said of one candidate."""

    finding: Finding | None = None
    """What keeps a kernel from running on the target."""
    compiled: bool = False
    """At least one kernel was built and nothing was refused."""
    kernels: tuple[resources.KernelResources, ...] = ()
    notes: tuple[str, ...] = ()
    """What makes kernels slow though they launch: spilled registers."""
    skipped: tuple[str, ...] = ()
    """Launches that this stage can't judge, and why."""


class _Error(msgspec.Struct, kw_only=True):
    type: str
    message: str
    line: int


class _Answer(msgspec.Struct, kw_only=True):
    """A child's frame on one launch."""

    launch: int
    compiled: dict[str, int] | None = None
    error: _Error | None = None
    skipped: str = ""
    ended: int = 0


class CompileStage:
    """A zygote without the interpreter; started only where a target is set.

    All launches share `compile_wall_s`; one of several may take `launch_share` of it in processor time, so that the
    others have some.
    """

    def __init__(self, settings: JudgeSettings, walls: sandbox.Walls, slot: int, launch_share: float = 0.5) -> None:
        self._settings = settings
        self._launch_share = launch_share
        self._target = parse_target(settings.target)
        self.zygote = Zygote("compile", walls, slot)

    def check(self, definitions: dict[str, KernelDefinition], launches: list[Launch], source: str) -> CompileReport:
        """Compile the launches (16 at most, different ones; the caller's record of them) of the candidate `source`,
        which is only quoted from. Raises ZygoteError for our own trouble."""
        settings = self._settings
        launches = launches[:MAX_LAUNCHES]
        lines = source.splitlines()
        for launch in launches:
            definition = definitions.get(launch.kernel)
            if definition is None:
                return CompileReport(finding=_tampering())
            refused = resources.launch_options(launch.options, definition.name, definition.line, settings.target)
            if refused is not None:
                return CompileReport(finding=_quoting(refused, lines))
        share = settings.compile_wall_s * (1.0 if len(launches) == 1 else self._launch_share)
        header = {
            "definitions": msgspec.to_builtins(definitions),
            "launches": msgspec.to_builtins(launches),
            "target": list(self._target),
            "launch_cpu_s": share,
        }
        limits = sandbox.Limits(
            memory_mb=_MEMORY_MB, wall_s=settings.compile_wall_s, tmp_mb=TMP_MB, allow_processes=True
        )
        outcome = self.zygote.run(header, [], limits, settings.output_kb, result_mb=4)
        report = self._read(outcome, definitions, launches, share, lines)
        return msgspec.structs.replace(report, finding=_quoting(report.finding, lines))

    def _read(
        self,
        outcome: Outcome,
        definitions: dict[str, KernelDefinition],
        launches: list[Launch],
        share_s: float,
        lines: list[str],
    ) -> CompileReport:
        target = self._settings.target
        if outcome.oversized:
            return CompileReport(finding=_tampering())
        used: list[resources.KernelResources] = []
        skipped: list[str] = []
        answered: set[int] = set()
        phase = 0
        for frame, _ in outcome.frames:
            if "refused" in frame:
                return CompileReport(finding=_fail("compile_error", compiler_text.trim(str(frame["refused"]))))
            if "launch" not in frame:
                phase = int(frame.get("phase", phase))
                continue
            try:
                answer = msgspec.convert(frame, _Answer)
                launch = launches[answer.launch]
                compiled = resources.KernelResources(
                    kernel=definitions[launch.kernel].name,
                    line=definitions[launch.kernel].line,
                    **(answer.compiled or {}),
                )
            except (msgspec.ValidationError, IndexError, TypeError):
                return CompileReport(finding=_tampering())
            answered.add(answer.launch)
            if answer.ended == -_SIGPROF:
                return CompileReport(finding=_timeout(definitions, launch, target, share_s))
            if answer.ended:
                return CompileReport(finding=_crash(definitions, launch, target, answer.ended, outcome.output))
            if answer.error is not None:
                if _NO_ROOM in answer.error.message:
                    return CompileReport(finding=_too_much(definitions, launch, target))
                return CompileReport(finding=self._refusal(answer.error, compiled.kernel, outcome.output, lines))
            if answer.skipped:
                skipped.append(f"{compiled.kernel}: {answer.skipped}")
                continue
            refused = resources.exceeded(compiled, target, _advice(launch))
            if refused is not None:
                return CompileReport(finding=refused)
            used.append(compiled)
        phase = min(phase, len(launches) - 1)
        if outcome.timed_out:
            limit = self._settings.compile_wall_s
            return CompileReport(finding=_timeout(definitions, launches[phase], target, limit))
        missing = sorted(set(range(len(launches))) - answered)
        if missing:
            return CompileReport(
                finding=_crash(definitions, launches[missing[0]], target, outcome.code, outcome.output)
            )
        notes = tuple(text for text in map(resources.note, used) if text)
        return CompileReport(compiled=bool(used), kernels=tuple(used), notes=notes, skipped=tuple(skipped))

    def _refusal(self, error: _Error, kernel: str, printed: str, lines: list[str]) -> Finding:
        """The compiler's own words; passes of MLIR print theirs and raise only that they failed."""
        line, place = error.line, f"Kernel {kernel}, target {self._settings.target}."
        if message := compiler_text.run_time_constant(error.message, line, lines):
            advice = "A tl.constexpr must be known when the kernel is compiled: pass it as an argument that is one"
            return _fail("compile_error", message, f"{advice}. {place}", line)
        message = compiler_text.triton_message(error.type, error.message)
        if "PassManager" in message or "ptxas" in message.lower():
            told = compiler_text.printed_errors(error.message) + compiler_text.printed_errors(printed)
            if told:
                message = told[0].text
                line = told[0].line if told[0].file.startswith("kernel_") else line
        return _fail("compile_error", message, place, line)


def _advice(launch: Launch) -> str:
    """Which constants to make smaller."""
    sizes = _sizes(launch)
    stages = launch.options.get("num_stages")
    parts = [sizes] if sizes else []
    parts += [f"num_stages = {stages}"] if isinstance(stages, int) and stages > 1 else []
    return (
        f"Launched with {', '.join(parts)}: use smaller blocks{' or fewer stages' if stages else ''}." if parts else ""
    )


def _sizes(launch: Launch) -> str:
    """The block sizes of a launch: its integer constants, largest first."""
    numbers = {
        name: constant.value
        for name, constant in launch.constants.items()
        if isinstance(constant, Constant) and type(constant.value) is int and constant.value > 1
    }
    largest = sorted(numbers, key=lambda name: -numbers[name])[:6]
    return ", ".join(f"{name} = {numbers[name]}" for name in sorted(largest))


def _timeout(definitions: dict[str, KernelDefinition], launch: Launch, target: str, limit_s: float) -> Finding:
    definition = definitions[launch.kernel]
    text = f"{definition.name} did not compile within {limit_s:g} s for {target}"
    return _fail("compile_timeout", text, _smaller(launch), definition.line)


def _too_much(definitions: dict[str, KernelDefinition], launch: Launch, target: str) -> Finding:
    definition = definitions[launch.kernel]
    text = f"the code of {definition.name} for {target} takes more than {TMP_MB} MB"
    return _fail("compile_error", text, _smaller(launch), definition.line)


def _smaller(launch: Launch) -> str:
    """What to do where compiling takes too much."""
    sizes = _sizes(launch)
    return f"{f'With {sizes}. ' if sizes else ''}Use smaller blocks or fewer unrolled iterations."


def _crash(definitions: dict[str, KernelDefinition], launch: Launch, target: str, code: int, output: str) -> Finding:
    definition = definitions[launch.kernel]
    told = compiler_text.printed_errors(output)
    ending = f"signal {-code}" if code < 0 else f"exit {code}"
    text = told[0].text if told else f"the compiler ended ({ending}) on {definition.name} for {target}"
    line = told[0].line if told and told[0].file.startswith("kernel_") else definition.line
    return _fail(
        "compile_error", text, f"Kernel {definition.name}, target {target}: the compiler ended ({ending}).", line
    )


def _fail(category: str, headline: str, detail: str = "", line: int = 0) -> Finding:
    return Finding(stage="compile", category=category, headline=headline, detail=detail, line=line)


def _quoting(finding: Finding | None, lines: list[str]) -> Any:
    """The finding with the text of its line."""
    if finding is None or finding.code or not 0 < finding.line <= len(lines):
        return finding
    return msgspec.structs.replace(finding, code=lines[finding.line - 1].strip()[:200])


def _tampering() -> Finding:
    return Finding(stage="correctness", category="tampering", headline="wrote to the judge's result channel")
