"""From what a child did to what is wrong with the candidate: the trusted side's reading of an outcome.

Nothing the child says about itself is believed where it could help it: outputs are compared here, a process that ended
early failed, a frame that does not parse is tampering. What it says about its own failure only chooses the words.
"""

import signal
from typing import Any

import msgspec

from core.evaluation import compare, values
from core.evaluation.draws import Draw
from core.evaluation.findings import Finding
from core.evaluation.screens import UNSUPPORTED
from core.evaluation.spawn import Outcome
from core.evaluation.verdict import Stage
from core.evaluation.work import Work

TORCH_SHARE = 0.8
"""A candidate whose torch operators move this share of the bytes that the reference's operators move did not replace
it."""
_MODES = {
    (True, False): "",
    (True, True): "with gradients on",
    (False, False): "in eval mode",
    (False, True): "in eval mode",
}


class DrawFrame(msgspec.Struct, kw_only=True):
    draw: int
    tree: Any = None
    odd_type: str = ""
    changed_inputs: list[int] = []
    changed_state: list[str] = []
    launches: int = 0


class ErrorFrame(msgspec.Struct, kw_only=True):
    type: str
    message: str
    line: int
    code: str
    phase: str
    in_kernel: bool = False
    launched: bool = False
    kernel: str = ""
    memory: bool = False
    signatures: dict[str, Any] = {}


class KernelFrame(msgspec.Struct, kw_only=True):
    name: str
    line: int
    launches: int
    programs: int
    sector_bytes: int
    traffic_bytes: int
    flops: int
    dot_flops: int


class TraceFrame(msgspec.Struct, kw_only=True):
    kernels: list[KernelFrame]
    signatures: dict[str, Any]
    operators: list[dict[str, list[int]]]
    reused: list[int]
    pristine: bool


class Report(msgspec.Struct, kw_only=True):
    """The frames, sorted."""

    phase: str = "start"
    draws: dict[int, tuple[DrawFrame, bytes]] = {}
    error: ErrorFrame | None = None
    trace: TraceFrame | None = None
    ghost: tuple[Any, bytes] | None = None

    @property
    def signatures(self) -> dict[str, Any]:
        """Types and constants of the launches that were reached."""
        return self.trace.signatures if self.trace else self.error.signatures if self.error else {}

    @property
    def launched(self) -> bool:
        """Whether a kernel launch was reached."""
        counted = any(frame.launches > 0 for frame, _ in self.draws.values())
        return counted or bool(self.error and self.error.launched and self.error.type != "LaunchError")


def read(outcome: Outcome) -> Report:
    """Sort the frames; raises msgspec.ValidationError or ValueError on what no harness of ours sends."""
    report = Report(draws={})
    for header, blob in outcome.frames:
        if "phase" in header:
            report.phase = str(header["phase"])
        elif "error" in header:
            report.error = msgspec.convert(header["error"], ErrorFrame)
        elif "trace" in header:
            report.trace = msgspec.convert(header["trace"], TraceFrame)
        elif "ghost" in header:
            report.ghost = (header["ghost"], blob)
        elif "draw" in header:
            frame = msgspec.convert(header, DrawFrame)
            if frame.draw in report.draws:
                raise ValueError(f"two outputs for draw {frame.draw}")
            report.draws[frame.draw] = (frame, blob)
        else:
            raise ValueError(f"unknown frame {sorted(header)}")
    return report


def _tampered(text: str) -> Finding:
    return Finding(stage="correctness", category="tampering", headline=text)


def _stage(phase: str) -> Stage:
    return "load" if phase in ("start", "import", "construct") else "launch"


_INPUTS = {
    "wide": "on inputs of size 3",
    "wide_positive": "on positive inputs of size 3",
    "narrow": "on small inputs",
    "narrow_positive": "on small positive inputs",
    "mixed": "on inputs of mixed size",
    "scaled": "on scaled inputs",
}
_DOING = {
    "start": "starting",
    "import": "importing the source",
    "construct": "constructing ModelNew",
    "forward": "running forward",
}


def ending(outcome: Outcome, report: Report, wall_s: float, memory_mb: int) -> Finding | None:
    """How the process ended, when that is the finding."""
    doing = _DOING.get(report.phase, "running forward")
    stage = _stage(report.phase)
    if outcome.flooded:
        return Finding(stage=stage, category="output_limit", headline=f"printed more than 64 MiB while {doing}")
    if report.trace is not None:
        return None  # all outputs had arrived
    if outcome.timed_out or outcome.code == -signal.SIGXCPU:
        detail = "Look for a loop that does not end, or for a grid of far too many programs."
        return Finding(
            stage=stage, category="timeout", headline=f"stopped after {wall_s:g} s while {doing}", detail=detail
        )
    if outcome.code == -signal.SIGKILL:
        return Finding(stage=stage, category="memory", headline=f"ran out of memory ({memory_mb} MB) while {doing}")
    if outcome.code < 0:
        name = signal.Signals(-outcome.code).name
        return Finding(stage=stage, category="crash", headline=f"the process died of {name} while {doing}")
    return Finding(stage=stage, category="crash", headline=f"the process ended (exit {outcome.code}) while {doing}")


def error_finding(error: ErrorFrame, screens: tuple[str, ...], memory_mb: int) -> Finding:
    """The candidate's exception in one line."""
    message = " ".join(error.message.split()).replace("module 'triton.language'", "tl")
    stage = _stage(error.phase)
    place: dict[str, Any] = {"line": error.line, "code": error.code}
    if error.memory or "can't allocate memory" in message or "DefaultCPUAllocator" in message:
        return Finding(
            stage=stage, category="memory", headline=f"asked for more than {memory_mb} MB of memory", **place
        )
    if error.type == "UnsupportedError" and UNSUPPORTED & set(screens):
        return Finding(stage="launch", category="unsupported", headline=message, kind="unsupported", **place)
    if error.type == "WeightsMismatch":
        detail = "ModelNew must have Model's parameters under the same names and shapes; they are copied by name."
        return Finding(stage="load", category="weights_mismatch", headline=message, detail=detail)
    if error.type == "NotPlainError":
        return Finding(stage="correctness", category="wrong_type", headline=f"forward returned {message}")
    headline = message if error.type in ("OutOfBoundsError", "LaunchError") else f"{error.type}: {message}".rstrip(": ")
    if error.type == "OutOfBoundsError":
        detail = "Mask the access: mask=offsets < n."
        return Finding(stage="launch", category="out_of_bounds", headline=headline, detail=detail, **place)
    if error.type == "LaunchError":
        return Finding(stage="launch", category="launch_error", headline=headline, **place)
    if error.phase == "import":
        return Finding(stage="load", category="import_error", headline=headline, **place)
    if error.phase == "construct":
        return Finding(stage="load", category="construct_error", headline=headline, **place)
    if error.in_kernel:
        detail = f"In kernel {error.kernel}." if error.kernel else ""
        return Finding(stage="launch", category="kernel_error", headline=headline, detail=detail, **place)
    return Finding(stage="launch", category="runtime_error", headline=headline, **place)


def outputs(report: Report, draws: list[Draw], work: Work, may_mutate: bool) -> Finding | None:
    """Compare every call; the first finding in the order of calls."""
    assert report.trace is not None
    trace = report.trace
    if not trace.pristine:
        return _tampered("the interpreter's operations were replaced")
    for index, draw in enumerate(draws):
        if index not in report.draws:
            return _tampered(f"no output arrived for call {index}")
        frame, blob = report.draws[index]
        if frame.odd_type:
            text = f"forward returned a {frame.odd_type}, not a plain torch.Tensor"
            return Finding(stage="correctness", category="wrong_type", headline=text)
        mode = _MODES[(draw.training, draw.grad)]
        operators = trace.operators[index] if index < len(trace.operators) else {}
        if frame.launches <= 0:
            return _no_kernel(operators, mode)
        if frame.changed_inputs and not may_mutate:
            text = f"forward changed its input {frame.changed_inputs[0]}"
            detail = "Write to a tensor of your own (torch.empty_like) instead."
            return Finding(stage="correctness", category="input_mutated", headline=text, detail=detail)
        try:
            got = values.decode(frame.tree, memoryview(blob))
        except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError) as error:
            return _tampered(f"the output of call {index} does not decode: {error}")
        finding = compare.check(draw.expected, got, _context(index, draw, mode))
        if finding is not None:
            return finding
        if frame.changed_state and not draw.training:
            text = f"forward changed the parameter {frame.changed_state[0]}"
            return Finding(stage="correctness", category="state_mutated", headline=text)
        fallback = _fallback(operators, work, mode)
        if fallback is not None:
            return fallback
    if trace.reused:
        text = f"call {trace.reused[0] + 1}'s output was overwritten by a later call"
        detail = "Return a fresh tensor from every call; an internal workspace may be kept."
        return Finding(stage="correctness", category="output_reused", headline=text, detail=detail)
    return _ghost(report, len(draws) - 1)


def _context(index: int, draw: Draw, mode: str) -> str:
    parts = [part for part in (_INPUTS.get(draw.kind, ""), mode) if part]
    if index == 0 or not parts:
        return ""
    return f"Call {index + 1} ({', '.join(parts)}) differs; earlier calls were right"


def _top(operators: dict[str, list[int]]) -> str:
    ranked = sorted((entry for entry in operators.items() if entry[1][3]), key=lambda entry: -entry[1][1])
    return ", ".join(name for name, _ in ranked[:4])


def _no_kernel(operators: dict[str, list[int]], mode: str) -> Finding:
    where = f" {mode}" if mode else ""
    work = _top(operators)
    headline = f"forward launched no Triton kernel{where}"
    detail = f"torch did the work: {work}." if work else "Launch your kernel as kernel[grid](...)."
    return Finding(stage="launch", category="no_kernel", headline=headline, detail=detail)


def _fallback(operators: dict[str, list[int]], work: Work, mode: str) -> Finding | None:
    """Torch operators that move about as many bytes as the whole reference."""
    mine = sum(entry[1] for entry in operators.values() if entry[3])
    theirs = sum(moved for _, moved, flops in work.operators if flops)
    if not theirs or mine < TORCH_SHARE * theirs:
        return None
    where = f" {mode}" if mode else ""
    headline = f"torch does the work{where}: {_top(operators)}"
    detail = (
        f"torch operators moved {mine:,} bytes, all of the reference's move {theirs:,}. Move the work into the kernel."
    )
    return Finding(stage="correctness", category="torch_fallback", headline=headline, detail=detail)


def _ghost(report: Report, last: int) -> Finding | None:
    """Whether the last call's output needs the kernels at all."""
    if report.ghost is None:
        return None
    tree, blob = report.ghost
    frame, real = report.draws[last]
    if tree != frame.tree or blob != real:
        return None
    headline = "the output is the same when the kernels do nothing"
    return Finding(stage="correctness", category="decoy_kernel", headline=headline)
