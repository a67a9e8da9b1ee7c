"""From what a child did to what is wrong with the candidate: the trusted side's reading of an outcome.

Nothing the child says about itself is believed where it could help it: outputs are compared here, a process that ended
early failed, a frame that does not parse is tampering. What it says about its own failure only chooses the words.
"""

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import torch

from core.evaluation import aten_costs, compare, values
from core.evaluation.draws import Draw
from core.evaluation.findings import Finding
from core.evaluation.report import DrawFrame, ErrorFrame, Report
from core.evaluation.screens import UNSUPPORTED
from core.evaluation.spawn import Outcome
from core.evaluation.tolerance import surviving_each
from core.evaluation.trees import flatten
from core.evaluation.verdict import Stage
from core.evaluation.work import Work

TORCH_SHARE = 0.5
"""A candidate whose torch operators do this share of what the reference's do, in bytes, did not replace it."""
DOT_SHARE = 0.4
"""The same for matrix operations."""
GHOST_SHARE = 0.95
"""Kernels whose garbage leaves this share of the output right are decoys."""
MIN_SCALARS_READ, MAX_SCALARS_READ = 4, 64
"""Values that a call may read into Python: a quarter of its inputs' elements, within these."""
_MODES = {
    (True, False): "",
    (True, True): "with gradients on",
    (False, False): "in eval mode",
    (False, True): "in eval mode",
}
_SETTINGS = {
    "training": {True: "in training mode", False: "in eval mode"},
    "grad": {True: "with gradients on", False: "with gradients off"},
}
"""Of a call: its field, and the words for each value."""


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
    "configuration": "running forward with another configuration of its autotuner",
}


def ending(outcome: Outcome, report: Report, wall_s: float, memory_mb: int) -> Finding | None:
    """How the processes ended, when that is the finding."""
    doing = _DOING.get(report.phase, "running forward")
    stage = _stage(report.phase)
    if outcome.flooded:
        return Finding(stage=stage, category="output_limit", headline=f"printed more than 64 MiB while {doing}")
    if outcome.oversized:
        return Finding(
            stage="correctness", category="wrong_shape", headline="forward returned far more than Model does"
        )
    if report.trace is not None:
        return None  # all outputs had arrived
    if report.forged:
        return _tampered(f"spoke to the executor directly: {report.forged}")
    code = outcome.code if report.host_ended is None else report.host_ended
    if outcome.timed_out or report.host_out_of_time or code == -signal.SIGXCPU:
        detail = "Look for a loop that does not end, or for a grid of far too many programs."
        return Finding(
            stage=stage, category="timeout", headline=f"stopped after {wall_s:g} s while {doing}", detail=detail
        )
    if code == -signal.SIGKILL:
        return Finding(stage=stage, category="memory", headline=f"ran out of memory ({memory_mb} MB) while {doing}")
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return Finding(stage=stage, category="crash", headline=f"the process died of {name} while {doing}")
    return Finding(stage=stage, category="crash", headline=f"the process ended (exit {code}) while {doing}")


_IN_KERNEL = {
    "OutOfBoundsError": ("out_of_bounds", "Mask the access: mask=offsets < n."),
    "RaceError": ("race_condition", "Programs run in any order: use tl.atomic_add, or give each element one program."),
    "IllegalKernelError": ("illegal_kernel", "A kernel may use tl, other @triton.jit functions and constexprs only."),
    "LaunchError": ("launch_error", ""),
}


def error_finding(error: ErrorFrame, screens: tuple[str, ...], memory_mb: int) -> Finding:
    """The candidate's exception in one line."""
    message = " ".join(error.message.split()).replace("module 'triton.language'", "tl")
    stage = _stage(error.phase)
    place: dict[str, Any] = {"line": error.line, "code": error.code}
    if error.memory or "can't allocate memory" in message or "DefaultCPUAllocator" in message:
        return Finding(
            stage=stage, category="memory", headline=f"asked for more than {memory_mb} MB of memory", **place
        )
    if error.type == "UnsupportedError" and (error.in_kernel or UNSUPPORTED & set(screens)):
        return Finding(stage="launch", category="unsupported", headline=message, kind="unsupported", **place)
    if error.type == "WeightsMismatch":
        detail = "ModelNew must have Model's parameters under the same names and shapes; they are copied by name."
        return Finding(stage="load", category="weights_mismatch", headline=message, detail=detail)
    if error.type == "OutputTooLarge":
        return Finding(stage="correctness", category="wrong_shape", headline=f"{message}, far more than Model does")
    if error.type == "NotPlainError":
        return Finding(stage="correctness", category="wrong_type", headline=f"forward returned {message}")
    if error.type in _IN_KERNEL:
        category, detail = _IN_KERNEL[error.type]
        return Finding(stage="launch", category=category, headline=message, detail=detail, **place)
    if error.type == "DataEscapeError":
        return Finding(stage="correctness", category="data_escape", headline=message, **place)
    headline = f"{error.type}: {message}".rstrip(": ")
    if error.phase == "import":
        return Finding(stage="load", category="import_error", headline=headline, **place)
    if error.phase == "construct":
        return Finding(stage="load", category="construct_error", headline=headline, **place)
    if error.in_kernel:
        detail = f"In kernel {error.kernel}." if error.kernel else ""
        return Finding(stage="launch", category="kernel_error", headline=headline, detail=detail, **place)
    return Finding(stage="launch", category="runtime_error", headline=headline, **place)


def one_call(frame: DrawFrame, blob: bytes, draw: Draw, index: int, may_mutate: bool) -> tuple[Finding | None, Any]:
    """What is wrong with one call, as far as it can be told from the call alone; and its output."""
    if frame.launches <= 0:
        return _no_kernel(frame.operators), None
    if frame.changed_inputs and not may_mutate:
        text = f"forward changed its input {frame.changed_inputs[0]}"
        detail = "Write to a tensor of your own (torch.empty_like) instead."
        return Finding(stage="correctness", category="input_mutated", headline=text, detail=detail), None
    try:
        got = values.decode(frame.tree, memoryview(blob))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        return _tampered(f"the output of call {index} does not decode: {error}"), None
    finding = compare.check(draw.expected, got, _context(index, draw))
    if finding is not None and frame.empty:
        detail = f"No program ran of {frame.empty}: round up, as triton.cdiv does. {finding.detail}"
        finding = msgspec.structs.replace(finding, detail=detail)
    return finding, got


def settles(header: dict[str, Any], blob: bytes, draws: list[Draw], may_mutate: bool) -> bool:
    """Whether a frame that just arrived is a call's that is wrong: then nothing more is needed."""
    if "draw" not in header:
        return False
    frame = msgspec.convert(header, DrawFrame)
    return one_call(frame, blob, draws[frame.draw], frame.draw, may_mutate)[0] is not None


def wrong_already(report: Report, draws: list[Draw], may_mutate: bool) -> Finding | None:
    """What is wrong with the calls that came to an end: what a later one does or can't do does not excuse it."""
    for index, (frame, blob) in sorted(report.draws.items()):
        if index < len(draws):
            finding, _ = one_call(frame, blob, draws[index], index, may_mutate)
            if finding is not None:
                return _in_its_mode(finding, index, report, draws, lambda other, _: _launched_nothing(other))
    return None


def outputs(report: Report, draws: list[Draw], work: Work, may_mutate: bool, ghost: int) -> Finding | None:
    """Compare every call; the first finding in the order of calls."""
    assert report.trace is not None
    trace = report.trace
    copies = not any(kernel.flops + kernel.dot_flops for kernel in trace.kernels)
    outputs_of: dict[int, list[torch.Tensor]] = {}
    for index, draw in enumerate(draws):
        if index not in report.draws:
            return _tampered(f"no output arrived for call {index}")
        frame, blob = report.draws[index]
        finding, got = one_call(frame, blob, draw, index, may_mutate)
        if finding is not None:
            return _in_its_mode(finding, index, report, draws, lambda other, _: _launched_nothing(other))
        outputs_of[index] = flatten(got)[1]
        if draw.repeats is not None and not all(map(values.same, outputs_of[index], outputs_of[draw.repeats])):
            text = f"calls {draw.repeats + 1} and {index + 1} got the same inputs and gave different outputs"
            detail = "An output may depend on nothing but the inputs and parameters of its own call."
            return Finding(stage="correctness", category="nondeterministic", headline=text, detail=detail)
        if frame.changed_state and not draw.training:
            text = f"forward changed the parameter {frame.changed_state[0]}"
            return Finding(stage="correctness", category="state_mutated", headline=text)
        if fallback := _fallback(frame, draw, work, copies):
            return _in_its_mode(fallback, index, report, draws, partial(_fallback, work=work, copies=copies))
        if escape := _escape(frame, draw):
            return _in_its_mode(escape, index, report, draws, _escape)
    if trace.reused:
        text = f"call {trace.reused[0] + 1}'s output was overwritten by a later call"
        detail = "Return a fresh tensor from every call; an internal workspace may be kept."
        return Finding(stage="correctness", category="output_reused", headline=text, detail=detail)
    if trace.changed:
        text = f"a later call with call {trace.changed[0] + 1}'s inputs gave another output"
        detail = "An output may depend on nothing but the inputs and parameters of its own call."
        return Finding(stage="correctness", category="nondeterministic", headline=text, detail=detail)
    return _configurations(report, draws) or _ghost(report, draws[ghost], ghost)


def _configurations(report: Report, draws: list[Draw]) -> Finding | None:
    """On a GPU the autotuner may choose any of them."""
    for number, index, tree, blob in report.configurations:
        context = f"Configuration {number + 1} of autotune differs; the first one is right"
        try:
            finding = compare.check(draws[index].expected, values.decode(tree, memoryview(blob)), context)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            return _tampered(f"the output of configuration {number + 1} does not decode: {error}")
        if finding is not None:
            return finding
    return None


def _in_its_mode(
    finding: Finding, index: int, report: Report, draws: list[Draw], check: Callable[[DrawFrame, Draw], Finding | None]
) -> Finding:
    """The finding of one call, with its mode where that tells the calls that `check` finds wrong from those that it
    finds fine: elsewhere the mode reads as if it were the cause."""
    if check(report.draws[index][0], draws[index]) is None:
        return finding
    calls = [(draws[at], check(frame, draws[at]) is None) for at, (frame, _) in report.draws.items() if at < len(draws)]
    named = []
    for setting, words in _SETTINGS.items():
        wrong, fine = ({getattr(draw, setting) for draw, good in calls if good is kind} for kind in (False, True))
        if len(wrong) == 1 and fine and not wrong & fine:
            named.append(words[wrong.pop()])
    told = f" ({' '.join(named)}; not in other modes)" if named else ""
    return msgspec.structs.replace(finding, headline=finding.headline + told)


def _context(index: int, draw: Draw) -> str:
    parts = [part for part in (_INPUTS.get(draw.kind, ""), _MODES[(draw.training, draw.grad)]) if part]
    if index == 0 or not parts:
        return ""
    return f"Call {index + 1} ({', '.join(parts)}) differs; earlier calls were right"


def _top(operators: dict[str, list[int]]) -> str:
    ranked = sorted((entry for entry in operators.items() if entry[1][3]), key=lambda entry: -entry[1][1])
    return ", ".join(name for name, _ in ranked[:4])


def _launched_nothing(frame: DrawFrame) -> Finding | None:
    return _no_kernel(frame.operators) if frame.launches <= 0 else None


def _no_kernel(operators: dict[str, list[int]]) -> Finding:
    work = _top(operators)
    headline = "forward launched no Triton kernel"
    detail = f"torch did the work: {work}." if work else "Launch your kernel as kernel[grid](...)."
    return Finding(stage="launch", category="no_kernel", headline=headline, detail=detail)


def _fallback(frame: DrawFrame, draw: Draw, work: Work, copies: bool) -> Finding | None:
    """Torch operators that do a good part of what the whole reference does: matrix flops, or bytes moved.

    Clones and concatenations count where the reference does nothing else, or where all kernels only copy (`copies`).
    """
    operators, ratio = frame.operators, draw.work_ratio
    headline = f"torch does the work: {_top(operators) or ', '.join(list(operators)[:4])}"
    theirs = sum(moved for _, moved, flops in work.operators if flops)
    mine = sum(entry[1] for entry in operators.values() if entry[3] or copies or not theirs)
    theirs = round(ratio * (theirs or sum(moved for _, moved, _ in work.operators)))
    if theirs and mine >= TORCH_SHARE * theirs:
        detail = (
            f"torch operators moved {mine:,} bytes, the reference's move {theirs:,}. Move the work into the kernel."
        )
        return Finding(stage="correctness", category="torch_fallback", headline=headline, detail=detail)
    flops = sum(entry[2] for name, entry in operators.items() if aten_costs.is_dot(name))
    wanted = round(ratio * work.dot_flops)
    known = {name for name, _, _ in work.operators} - aten_costs.OPAQUE
    if wanted and (opaque := {name for name in operators.keys() - known if aten_costs.may_be_product(name)}):
        detail = f"{', '.join(sorted(opaque))} may do the task's matrix operations. Use tl.dot in the kernel."
        return Finding(stage="correctness", category="torch_fallback", headline=headline, detail=detail)
    arithmetic = sum(entry[2] for name, entry in operators.items() if entry[3])
    asked = round(ratio * work.other_flops)
    if not wanted and asked and arithmetic >= TORCH_SHARE * asked:
        detail = f"torch did {arithmetic:,} of the {asked:,} operations. Move the work into the kernel."
        return Finding(stage="correctness", category="torch_fallback", headline=headline, detail=detail)
    if wanted and flops >= DOT_SHARE * wanted:
        detail = f"torch did {flops:,} of the {wanted:,} matrix operations. Use tl.dot in the kernel."
        return Finding(stage="correctness", category="torch_fallback", headline=headline, detail=detail)
    return None


def _escape(frame: DrawFrame, draw: Draw) -> Finding | None:
    """Values that were read into Python: few, and few of those that there are."""
    elements = sum(tensor.numel() for tensor in flatten(draw.inputs)[1])
    if frame.scalars_read <= max(MIN_SCALARS_READ, min(MAX_SCALARS_READ, elements // 4)):
        return None
    headline = f"forward read {frame.scalars_read:,} values into Python"
    detail = "Compute on tensors in the kernel; a few .item() calls for launch decisions are fine."
    return Finding(stage="correctness", category="data_escape", headline=headline, detail=detail)


def _ghost(report: Report, draw: Draw, index: int) -> Finding | None:
    """Whether the output needs the kernels: in the ghost run all that they stored is garbage."""
    if report.ghost is None:
        return None
    tree, blob = report.ghost
    share = min(surviving_each(draw.expected, values.decode(tree, memoryview(blob))), default=0.0)
    if share < GHOST_SHARE:
        return None
    headline = f"{share:.0%} of the output stays right when the kernels' stores are garbage"
    return Finding(stage="correctness", category="decoy_kernel", headline=headline)
