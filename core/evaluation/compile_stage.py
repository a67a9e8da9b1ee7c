"""The compile stage, trusted side: cross-compile what was launched for the run's target and hold it against its limits.

It closes the interpreter's false accepts: code that only Python understands, dots with K < 16, blocks that do not fit
into shared memory. Kernels whose arguments can't be described to the compiler are skipped, never refused.
"""

from typing import Any

import msgspec

from core.evaluation import sandbox
from core.evaluation.findings import Finding
from core.evaluation.settings import JudgeSettings, parse_target
from core.evaluation.spawn import Zygote

SHARED_BYTES = {
    "cuda:80": 166912, "cuda:86": 101376, "cuda:89": 101376, "cuda:90": 232448, "cuda:100": 232448, "cuda:103": 232448,
    "cuda:120": 101376, "hip:gfx90a": 65536, "hip:gfx942": 65536, "hip:gfx950": 163840,
}  # fmt: skip
"""Shared memory that one block may use (opt-in maximum)."""
REGISTERS_PER_BLOCK = 65536
_MEMORY_MB = 4096


class _Error(msgspec.Struct, kw_only=True):
    type: str
    message: str
    line: int
    code: str


class _Compiled(msgspec.Struct, kw_only=True):
    kernel: str
    shared: int = 0
    registers: int = 0
    stack: int = 0
    threads: int = 0
    error: _Error | None = None
    skipped: str = ""


def _fail(category: str, headline: str, detail: str = "", line: int = 0, code: str = "") -> Finding:
    return Finding(stage="compile", category=category, headline=headline, detail=detail, line=line, code=code)


class CompileStage:
    """A zygote without the interpreter; started only where a target is set."""

    def __init__(self, settings: JudgeSettings, walls: sandbox.Walls, slot: int) -> None:
        self._settings = settings
        self._target = parse_target(settings.target)
        self.zygote = Zygote("compile", walls, slot)

    def check(self, candidate: str, signatures: dict[str, Any]) -> Finding | None:
        """What keeps the launched kernels from running on the target, or None; raises ZygoteError for our own
        trouble."""
        settings = self._settings
        header = {"source": candidate, "signatures": signatures, "target": list(self._target)}
        limits = sandbox.Limits(memory_mb=_MEMORY_MB, wall_s=settings.compile_wall_s, allow_processes=True)
        outcome = self.zygote.run(header, [], limits, settings.output_kb, result_mb=4)
        if outcome.garbled:
            return Finding(stage="correctness", category="tampering", headline="wrote to the judge's result channel")
        answered: set[str] = set()
        phase = "import"
        for frame, _ in outcome.frames:
            if "kernel" not in frame:
                phase = str(frame.get("phase", phase))
                continue
            try:
                compiled = msgspec.convert(frame, _Compiled)
            except msgspec.ValidationError:
                return Finding(
                    stage="correctness", category="tampering", headline="wrote to the judge's result channel"
                )
            answered.add(compiled.kernel)
            finding = self._limits(compiled, signatures)
            if finding is not None:
                return finding
        if outcome.timed_out:
            detail = "Use smaller blocks or fewer unrolled iterations."
            text = f"{phase} did not compile within {settings.compile_wall_s:g} s for {settings.target}"
            return _fail("compile_timeout", text, detail)
        missing = sorted(set(signatures) - answered)
        if missing:
            return _fail(
                "compile_error", f"the compiler ended (exit {outcome.code}) on {missing[0]} for {settings.target}"
            )
        return None

    def _limits(self, compiled: _Compiled, signatures: dict[str, Any]) -> Finding | None:
        target, name = self._settings.target, compiled.kernel
        if compiled.error is not None:
            error = compiled.error
            message = " ".join(error.message.split())
            if error.type not in ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"):
                message = f"{error.type}: {message}"
            return _fail("compile_error", message, f"Kernel {name}, target {target}.", error.line, error.code)
        limit = SHARED_BYTES.get(target, 0)
        line = int(signatures.get(name, {}).get("line", 0))
        if limit and compiled.shared > limit:
            text = f"{name} needs {compiled.shared:,} B of shared memory, {target} has {limit:,} B"
            return _fail("shared_memory", text, "Use smaller blocks or fewer stages.", line)
        if compiled.threads > 1024:
            return _fail("registers", f"{name} uses {compiled.threads} threads a block, {target} has 1,024", "", line)
        if compiled.registers * compiled.threads > REGISTERS_PER_BLOCK:
            text = f"{name} needs {compiled.registers} registers x {compiled.threads} threads > {REGISTERS_PER_BLOCK:,}"
            return _fail("registers", text, "Use smaller blocks or fewer warps.", line)
        return None
