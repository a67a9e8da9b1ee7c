"""CUDA C++ candidates without a GPU, trusted side: nvcc says whether they compile for the target and what they use.

A candidate that compiles is not judged right or wrong: `unsupported`, compiled. One that can't compile, link or launch
is a `fail` with nvcc's own message and the candidate's line. Where the compiler is missing or did not get through
torch's headers in time, nothing is known of the candidate: `unsupported`, with what to do.

    stage = CudaStage(settings, compile_stage.zygote)
    report = stage.check(extensions, source)          # extensions: what `cuda_capture` recorded
"""

import re

import msgspec

from core.evaluation import cuda_source
from core.evaluation.compilers import compiler_text, nvcc, ptxas, resources
from core.evaluation.compilers.compile_stage import CompileReport
from core.evaluation.cuda_source import Extension
from core.evaluation.findings import Finding
from core.evaluation.settings import JudgeSettings, parse_target
from core.evaluation.spawn import Outcome, Zygote
from core.evaluation.walls import sandbox

HEADERS_WALL_S = 100.0
"""What torch's own headers may take, on top of `compile_wall_s`: 20 to 30 s of processor time on a file."""
_MEMORY_MB = 6144
_TMP_MB = 512
_PRELUDE = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
_CUDA_FLAGS = [
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr", "-allow-unsupported-compiler",
]  # fmt: skip
"""As torch passes them; the last one since a host compiler newer than nvcc knows is no fault of the candidate's."""


class _Answer(msgspec.Struct, kw_only=True):
    file: str
    headers: str
    code: int
    output: str
    final: bool


class CudaStage:
    """Shares the compile stage's zygote; nvcc runs inside its walls."""

    def __init__(self, settings: JudgeSettings, zygote: Zygote) -> None:
        self._settings = settings
        self._zygote = zygote
        self._toolchain: nvcc.Toolchain | str | None = None

    def check(self, extensions: list[Extension], source: str) -> CompileReport:
        """Compile what the candidate `source` handed to load_inline or load. Raises ZygoteError for our own trouble."""
        target = self._settings.target
        if not target.startswith("cuda:"):
            return _unsupported(f"CUDA C++ is compiled for cuda targets, not for {target!r}: give one (cuda:90)")
        if not any(extension.cuda_sources for extension in extensions):
            text = "no CUDA source: load_inline was not called with cuda_sources"
            return CompileReport(finding=Finding(stage="launch", category="no_kernel", headline=text))
        for extension in extensions:
            reason = cuda_source.unlinkable(extension)
            if reason:
                return CompileReport(finding=_fail("compile_error", reason, f"Extension {extension.name}."))
        if self._toolchain is None:
            self._toolchain = nvcc.find_toolchain()
        if isinstance(self._toolchain, str):
            return _unsupported(self._toolchain)
        tools = self._toolchain
        files, texts = self._files(extensions, tools)
        header = {"cuda": files, "includes": list(tools.includes), "headers": [*tools.includes, *tools.system_includes]}
        limits = sandbox.Limits(
            memory_mb=_MEMORY_MB,
            wall_s=self._settings.compile_wall_s + HEADERS_WALL_S,
            tmp_mb=_TMP_MB,
            allow_processes=True,
        )
        outcome = self._zygote.run(header, [], limits, self._settings.output_kb, result_mb=4)
        return self._read(outcome, [str(file["file"]) for file in files], texts, source)

    def _files(
        self, extensions: list[Extension], tools: nvcc.Toolchain
    ) -> tuple[list[dict[str, object]], dict[str, str]]:
        """What to compile with which command, and each part's text by the name that messages will use."""
        arch = f"sm_{parse_target(self._settings.target)[1]}"
        files: list[dict[str, object]] = []
        texts: dict[str, str] = {}
        for index, extension in enumerate(extensions):
            name = re.sub(r"\W", "_", extension.name)[:64] or "extension"
            common = [f"-DTORCH_EXTENSION_NAME={name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
            flags = cuda_source.allowed_flags(extension.cuda_flags)
            # The suffix asks for instructions of this architecture alone (wgmma); torch passes it on as well.
            exact = any(re.search(rf"{arch[3:]}a\b", flag) for flag in extension.cuda_flags)
            command = [tools.nvcc, "-cubin", f"-arch={arch}{'a' * exact}", "-Xptxas", "-v", "-ccbin", tools.cxx]
            command += [*_CUDA_FLAGS, *common, *flags, *_standard(flags), "-o", "out.cubin"]
            if extension.cuda_sources:
                text = _joined(f"cuda_{index}", ".cu", extension.cuda_sources, extension.headers, texts)
                files.append({"file": f"{name}_{index}.cu", "text": text, "command": command})
            host = [part for part in extension.cpp_sources if not cuda_source.only_declares(part)]
            if host:
                flags = cuda_source.allowed_flags(extension.cflags)
                command = [tools.cxx, "-fsyntax-only", *common, *flags, *_standard(flags)]
                # All parts: the others declare what these use.
                text = _joined(f"host_{index}", ".cpp", extension.cpp_sources, extension.headers, texts)
                files.append({"file": f"{name}_{index}.cpp", "text": text, "command": command})
        return files, texts

    def _read(self, outcome: Outcome, files: list[str], texts: dict[str, str], source: str) -> CompileReport:
        settings = self._settings
        if outcome.oversized:
            return CompileReport(finding=_tampering())
        answers: dict[str, _Answer] = {}
        for frame, _ in outcome.frames:
            if "code" in frame:
                try:
                    answer = msgspec.convert(frame, _Answer)
                except msgspec.ValidationError:
                    return CompileReport(finding=_tampering())
                answers[answer.file] = answer  # the last one counts
        used: list[resources.KernelResources] = []
        for file in files:
            told = answers.get(file)
            if told is None or not told.final:
                return self._unfinished(outcome)
            if told.code:
                return CompileReport(finding=self._refusal(told, texts, source))
            used += _used(told.output, source)
        for kernel in used:
            refused = resources.exceeded(kernel, settings.target)
            if refused is not None:
                return CompileReport(finding=_quoting(refused, source))
        if not used:
            text = "the CUDA source holds no kernel: no __global__ function was compiled"
            return CompileReport(finding=Finding(stage="launch", category="no_kernel", headline=text))
        notes = tuple(text for text in map(resources.note, used) if text)
        names = ", ".join(dict.fromkeys(kernel.kernel for kernel in used))
        text = f"compiles for {_sm(settings.target)}; needs a GPU to run"
        detail = " ".join([f"Kernels: {compiler_text.trim(names, 200)}.", *notes])
        return msgspec.structs.replace(_unsupported(text, detail), compiled=True, kernels=tuple(used), notes=notes)

    def _unfinished(self, outcome: Outcome) -> CompileReport:
        wall_s = self._settings.compile_wall_s + HEADERS_WALL_S
        if outcome.timed_out:
            return _unsupported(f"nvcc did not finish within {wall_s:g} s: raise judge.compile_wall_s")
        return _unsupported(f"nvcc ended early (exit {outcome.code}): see judge.memory_mb and the free space of /tmp")

    def _refusal(self, told: _Answer, texts: dict[str, str], source: str) -> Finding:
        target = self._settings.target
        shared = ptxas.too_much_shared(told.output)
        if shared is not None:
            name = ptxas.plain_name(shared[0])
            text = f"shared memory {shared[1]:,} B > {shared[2]:,} B, static, in {name}"
            advice = "Declare less, or use extern __shared__ with cudaFuncAttributeMaxDynamicSharedMemorySize."
            return _quoting(_fail("shared_memory", text, advice, _line_of_kernel(name, source)), source)
        errors = compiler_text.printed_errors(told.output)
        if not errors:
            return _fail("compile_error", compiler_text.trim(told.output[-300:]) or f"nvcc ended with {told.code}")
        first = next((error for error in errors if error.file in texts), errors[0])
        file, line = first.file, first.line
        if file not in texts:  # inside a header, used from here
            place = re.search(r"(?:at line (\d+) of \"?(\w+\.\w+)\"?|(\w+_\d+_\d+\.\w+):(\d+):)", told.output)
            file, line = (place[2] or place[3], int(place[1] or place[4])) if place else ("", 0)
        own = _line_in_candidate(texts.get(file, ""), line, source)
        more = f" {len(errors) - 1} more." if len(errors) > 1 else ""
        return _quoting(_fail("compile_error", first.text, f"nvcc for {target}.{more}", own), source)


def _joined(stem: str, ending: str, parts: tuple[str, ...], headers: bool, texts: dict[str, str]) -> str:
    """One file of several parts, each with lines of its own for messages."""
    prelude = _PRELUDE if ending == ".cu" else "#include <torch/extension.h>\n"
    text = prelude if headers else ""
    for number, part in enumerate(parts):
        name = f"{stem}_{number}{ending}"
        texts[name] = part
        text += f'#line 1 "{name}"\n{part}\n'
    return text


def _standard(flags: list[str]) -> list[str]:
    return [] if any(flag.startswith("-std=") for flag in flags) else ["-std=c++20"]


def _used(output: str, source: str) -> list[resources.KernelResources]:
    found = []
    for usage in ptxas.usages(output):
        name = ptxas.plain_name(usage.entry)
        found.append(
            resources.KernelResources(
                kernel=name,
                line=_line_of_kernel(name, source),
                shared_bytes=usage.shared_bytes,
                registers=usage.registers,
                stack_bytes=usage.stack_bytes,
                spill_bytes=usage.spill_bytes,
            )
        )
    return found


def _line_of_kernel(name: str, source: str) -> int:
    """Where the candidate defines a kernel, 0 when its text does not show it."""
    declared = False
    for match in re.finditer(rf"\b__global__\b|[;{{}}]|\b{re.escape(name)}\s*\(", source):
        if declared and match[0][-1] == "(":
            return source.count("\n", 0, match.end()) + 1
        declared = match[0] == "__global__"
    return 0


def _line_in_candidate(text: str, line: int, source: str) -> int:
    """Line of the candidate that holds `line` of a recorded text: a literal stands in the source as it is; for text
    that was put together the line itself is looked for."""
    lines = text.splitlines()
    if not 0 < line <= len(lines):
        return 0
    at = source.find(text) if text.strip() else -1
    if at >= 0:
        return source.count("\n", 0, at) + line
    wanted = lines[line - 1].strip()
    same = [number for number, own in enumerate(source.splitlines(), 1) if own.strip() == wanted]
    return same[0] if wanted and len(same) == 1 else 0


def _sm(target: str) -> str:
    return "sm_" + target.partition(":")[2]


def _quoting(finding: Finding, source: str) -> Finding:
    lines = source.splitlines()
    if not 0 < finding.line <= len(lines):
        return finding
    return msgspec.structs.replace(finding, code=lines[finding.line - 1].strip()[:200])


def _fail(category: str, headline: str, detail: str = "", line: int = 0) -> Finding:
    return Finding(stage="compile", category=category, headline=headline, detail=detail, line=line)


def _unsupported(headline: str, detail: str = "") -> CompileReport:
    finding = Finding(stage="compile", category="unsupported", headline=headline, detail=detail, kind="unsupported")
    return CompileReport(finding=finding)


def _tampering() -> Finding:
    return Finding(stage="correctness", category="tampering", headline="wrote to the judge's result channel")
