"""Why a GPU child failed, as a finding: the driver's, Triton's, torch's and the kernel's words sorted into categories.

A fault on the device (illegal access, failed assertion, misaligned address) ends the CUDA context in which it happened
and nothing else: every child makes its own context after its fork, the trusted side has its own in another process, and
the GPU's memory management keeps their address spaces apart. What is shared, an arena, is memory that belongs to no
context: it stays mapped where it was. So after a child's fault only that child is ended. (A fault of the whole GPU, or
one that the trusted side's own reference raises, is another matter: `broken` says that this process must be replaced.)

What a child says only chooses the words: it failed in any case.
"""

import re
import signal

import msgspec
import torch

from core.evaluation import diagnosis
from core.evaluation.findings import Finding, trim_compiler_message
from core.evaluation.gpu.spawn import GARBLED, ChildFailed
from core.evaluation.verdict import Stage

_FAULTS: tuple[tuple[str, Stage, str, str, str], ...] = (
    ("illegal memory access", "launch", "out_of_bounds", "a kernel touched memory that is not its own",
     "Mask loads and stores (mask=offsets < n), and compute offsets of large tensors in int64."),
    ("misaligned address", "launch", "kernel_error", "a kernel touched a misaligned address",
     "A vector access needs an address that is a multiple of its size."),
    ("device-side assert", "launch", "kernel_error", "an assertion in a kernel failed on the device",
     "An index is outside of its range, or the kernel's own device_assert does not hold."),
    ("illegal instruction", "launch", "kernel_error", "a kernel ran into an illegal instruction", ""),
    ("illegal address", "launch", "out_of_bounds", "a kernel touched memory that is not its own", ""),
    ("too many resources requested", "compile", "registers",
     "a launch asks for more registers or threads than one block may have",
     "Use smaller blocks or fewer warps (__launch_bounds__ in CUDA C++)."),
    ("invalid configuration argument", "launch", "launch_error", "a kernel was launched with an impossible grid",
     "A grid has no dimension of 0 and at most 65,535 in y and z; a block has at most 1,024 threads."),
    ("no kernel image", "launch", "launch_error", "the compiled kernel is for another GPU", ""),
    ("invalid device function", "launch", "launch_error", "the compiled kernel is for another GPU", ""),
    ("launch timed out", "launch", "timeout", "a kernel ran longer than the driver allows", ""),
    ("unspecified launch failure", "launch", "kernel_error", "a kernel died while it ran (unspecified launch failure)",
     "Often an access far outside of its memory, or a stack that is too small."),
    ("launch failure", "launch", "kernel_error", "a kernel died while it ran (launch failure)", ""),
    ("invalid resource handle", "launch", "launch_error", "a stream or event of another context is used", ""),
    ("an illegal", "launch", "kernel_error", "a kernel did something illegal", ""),
    ("invalid argument", "launch", "launch_error", "the driver refused a launch: invalid argument", ""),
)  # fmt: skip
"""(words, stage, category, headline, advice); the first match counts, so the special ones come first."""
_OUT_OF_MEMORY = re.compile(r"Tried to allocate ([\d.]+) ([KMGT]i?B)")
_TOO_MUCH = re.compile(r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation", re.IGNORECASE)
_FREE = re.compile(r"of which ([\d.]+) ([KMGT]i?B) is free")
_RESOURCE = re.compile(r"out of resource: ([\w ]+), Required: (\d+), Hardware limit: (\d+)")
_COMPILER = frozenset(
    ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError", "MLIRError")
)
_COMPILER_WORDS = ("PassManager::run failed", "Error building extension", "failed to translate module to LLVM IR")
_AT = re.compile(r"at (\d+):\d+:\n(?:@[^\n]*\n)*def (\w+)\(")
_TIMED = ("block", "readings", "warm", "flushes")
_ARE_CUDA = ("CUDA error", "Triton Error [CUDA]", "CUDA driver error", "cuda runtime error", "cuCtxSynchronize")


def finding_of(failure: ChildFailed, wall_s: float, memory_mb: int, source: str = "", needs: str = "") -> Finding:
    """What is wrong with a candidate whose child failed; `needs` is what the task itself needs of device memory."""
    phase = failure.doing if failure.doing in ("import", "construct", "start") else "forward"
    stage: Stage = "timing" if failure.doing in _TIMED else diagnosis._stage(phase)
    doing = "running forward again, to be timed" if stage == "timing" else diagnosis._DOING[phase]
    if failure.timed_out:
        detail = "Look for a loop that does not end, a grid of far too many programs, or a program that waits forever."
        return Finding(
            stage=stage, category="timeout", headline=f"stopped after {wall_s:g} s while {doing}", detail=detail
        )
    if failure.error is None:
        return Finding(stage=stage, category="crash", headline=f"{_ending(failure.code or 0)} while {doing}")
    plain = {"type": "Exception", "message": "", "line": 0, "code": "", **failure.error, "phase": phase}
    try:
        error = msgspec.convert(plain, diagnosis.ErrorFrame)
    except msgspec.ValidationError as reason:
        text = f"an answer that is none of ours: {reason}"
        return Finding(stage="correctness", category="tampering", headline=text)
    if error.type == GARBLED:
        text = f"while {doing} it spoke to the judge directly: {error.message}"
        return Finding(stage="correctness", category="tampering", headline=text)
    found = _memory(error, needs) or _resources(error) or _compiler(error, source) or _fault(error)
    if found is None:
        found = diagnosis.error_finding(error, (), memory_mb)
    elif stage == "load" and found.stage == "launch":
        found = msgspec.structs.replace(found, stage=stage)
    return msgspec.structs.replace(found, stage=stage) if stage == "timing" else found


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "the process was killed (SIGKILL)"
    if code < 0:
        return (
            f"the process died of {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
        )
    return f"the process ended (exit {code})"


def _memory(error: diagnosis.ErrorFrame, needs: str) -> Finding | None:
    if not _TOO_MUCH.search(error.message) or "out of resource" in error.message:
        return None
    asked, free = _OUT_OF_MEMORY.search(error.message), _FREE.search(error.message)
    text = "the device's memory did not suffice"
    if asked is not None:
        there = f" where {free[1]} {free[2]} were left" if free is not None else ""
        text = f"asked for {asked[1]} {asked[2]} more{there}"
    detail = f"On this GPU {needs}; intermediate tensors and copies come on top." if needs else ""
    return Finding(stage="launch", category="memory", headline=text, detail=detail, line=error.line, code=error.code)


def _resources(error: diagnosis.ErrorFrame) -> Finding | None:
    match = _RESOURCE.search(error.message)
    if match is None:
        return None
    what, asked, limit = match[1], int(match[2]), int(match[3])
    category = "registers" if what in ("registers", "threads") else "shared_memory"
    unit = "" if category == "registers" else " bytes"
    text = f"a kernel needs {asked:,}{unit} of {what}, a block may have {limit:,}"
    detail = "Use smaller blocks" + (", or fewer stages (num_stages)." if category != "registers" else " or warps.")
    return Finding(stage="compile", category=category, headline=text, detail=detail, line=error.line, code=error.code)


def _compiler(error: diagnosis.ErrorFrame, source: str) -> Finding | None:
    """Triton's or nvcc's own message, and the line of the candidate that it means."""
    if error.type not in _COMPILER and not any(words in error.message for words in _COMPILER_WORDS):
        return None
    line, code = _line_of(error, source)
    text = trim_compiler_message(error.message, 300)
    return Finding(stage="compile", category="compile_error", headline=text, line=line, code=code)


def _line_of(error: diagnosis.ErrorFrame, source: str) -> tuple[int, str]:
    """The line that a compiler's message marks with a caret, else the one that launched the kernel."""
    lines = source.splitlines()
    shown = error.message.splitlines()
    caret = next((at for at in range(len(shown) - 1, 0, -1) if shown[at].strip() == "^"), 0)
    if caret:
        alike = [at for at, text in enumerate(lines, 1) if text.strip() == shown[caret - 1].strip()]
        places = _AT.findall(error.message)
        if len(alike) != 1 and places:
            starts = [at for at, text in enumerate(lines, 1) if re.match(rf"\s*def {places[-1][1]}\(", text)]
            alike = [starts[0] + int(places[-1][0]) - 1] if starts else []
        if len(alike) == 1 and alike[0] <= len(lines):
            return alike[0], lines[alike[0] - 1].strip()
    return error.line, error.code


def _fault(error: diagnosis.ErrorFrame) -> Finding | None:
    message = error.message.lower()
    if not any(words.lower() in message for words in _ARE_CUDA):
        return None
    for words, stage, category, headline, detail in _FAULTS:
        if words in message:
            # Faults are reported by a later call, so the line may be that of another one.
            return Finding(stage=stage, category=category, headline=headline, detail=detail)
    return None


_STICKY = (
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_CONTAINED", "CUDA_ERROR_CONTEXT_IS_DESTROYED", "CUDA_ERROR_DEINITIALIZED", "CUDA_ERROR_UNKNOWN",
)  # fmt: skip
"""The driver's own names of errors after which a context is lost, whichever call tells of them."""


def broken(error: BaseException) -> bool:
    """Whether an error of this process's own may mean that its CUDA context is lost."""
    text = str(error)
    return any(words in text for words in (*_ARE_CUDA, *_STICKY)) and not out_of_memory(error)


def context_lost(device: str) -> bool:
    """Whether this process's CUDA context can't compute any more; after an error that is `broken`."""
    if device == "cpu":
        return True
    try:
        (torch.ones(8, device=device) + 1).sum().item()
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return False
    except RuntimeError:
        return True
    return False


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of this process's own is that the device's memory did not suffice."""
    words = ("CUDA_ERROR_OUT_OF_MEMORY", "can't allocate memory")
    return bool(_TOO_MUCH.search(str(error))) or any(part in str(error) for part in words)
