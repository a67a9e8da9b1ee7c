"""Whether a call's output, inputs and buffers are what the reference gives: part by part, on the device.

Where a part is the whole, `compare` judges it. Where it is a range or large, it is gone through in pieces of flat
elements with the scale of the whole output (`tolerance`). What fails is looked at again with the sensitivity to the
inputs' rounding, which costs more runs of the reference and is needed for ill-conditioned elements alone.
"""

import math
from typing import Any

import msgspec
import torch

from core.evaluation import compare, tolerance
from core.evaluation.expected import is_inexact
from core.evaluation.findings import Finding
from core.evaluation.gpu.inputs import ChangedInputs
from core.evaluation.tolerance import Expected

PIECE = 1 << 24
"""Elements compared at once: about ten float64 temporaries of 128 MiB."""
EFFECTS_FOLLOW = True
"""Inputs and buffers that the module itself changes must be changed alike."""

Scale = tuple[float, float, float]


class Samples(msgspec.Struct, kw_only=True):
    """Right values of one output at some places."""

    wanted: torch.Tensor
    """float64 (or the output's own type where it is exact), [places]"""
    allowed: torch.Tensor
    """[places], float64"""


def scales(reference: Any, inputs: Any, training: bool | None = None) -> list[Scale | None]:
    """(centre, largest size, spread) of every whole output; None where it is exact or empty. Raises ChangedInputs."""
    sums: list[list[float]] = [[0.0, 0.0, 0.0, 0.0] for _ in reference.outputs]
    for part in reference.parts(inputs, training):
        for number, exact in enumerate(part.expected.exact):
            if exact.is_floating_point():
                _add(sums[number], exact, part.expected.native[number])
    found: list[Scale | None] = []
    for count, total, squares, largest in sums:
        if not count:
            found.append(None)
            continue
        centre, rms = total / count, math.sqrt(squares / count)
        found.append((centre, largest, max(math.sqrt(max(0.0, squares / count - centre**2)), 0.05 * rms)))
    return found


def _add(held: list[float], exact: torch.Tensor, native: torch.Tensor) -> None:
    for wanted, own in zip(exact.flatten().split(PIECE), native.flatten().split(PIECE), strict=True):
        wide = wanted.double()
        if not wide.numel():
            continue
        size = torch.linalg.vector_norm
        values = wide.sum(), size(wide), size(wide, ord=math.inf), size(own, ord=math.inf).double()
        count, (total, norm, largest, native_largest) = wide.numel(), torch.stack(values).tolist()
        if not (math.isfinite(norm) and math.isfinite(native_largest)):
            finite = wide[torch.isfinite(wide) & torch.isfinite(own)]
            if not finite.numel():
                continue
            count, total, norm = finite.numel(), float(finite.sum()), float(torch.linalg.vector_norm(finite))
            largest = float(finite.abs().amax())
        held[0] += count
        held[1] += total
        held[2] += norm**2
        held[3] = max(held[3], largest)


def check(
    reference: Any, inputs: Any, got: Any, places: list[torch.Tensor], context: str = "",
    training: bool | None = None, effects: list[torch.Tensor] | None = None,
) -> tuple[Finding | None, list[Samples]]:  # fmt: skip
    """Compare an output (right in types and shapes: tensors, or what gives them part by part) with what the inputs
    give; also the right values at `places` (flat indices per output). `effects` are inputs and buffers after the call,
    by the reference's `effect_names`; None where they are not looked at."""
    samples = [
        Samples(
            wanted=torch.zeros(at.shape, dtype=torch.float64 if is_inexact(own) else own.dtype, device=at.device),
            allowed=torch.zeros(at.shape, dtype=torch.float64, device=at.device),
        )
        for own, at in zip(reference.outputs, places, strict=True)
    ]
    try:
        return _check(reference, inputs, got, places, samples, context, training, effects), samples
    except ChangedInputs as changed:
        return input_changed(changed.number), samples
    finally:
        if hasattr(got, "done"):
            got.done()


def input_changed(number: int) -> Finding:
    return Finding(
        stage="correctness", category="input_mutated", headline=f"forward changed its input {number}",
        detail="Write to a tensor of your own (torch.empty_like) instead.",
    )  # fmt: skip


def _check(
    reference: Any, inputs: Any, got: Any, places: list[torch.Tensor], samples: list[Samples], context: str,
    training: bool | None, effects: list[torch.Tensor] | None,
) -> Finding | None:  # fmt: skip
    split = reference.split
    in_pieces = split is not None or any(tensor.numel() > PIECE for tensor in reference.outputs)
    known: list[Scale | None] = [None] * len(reference.outputs)
    if in_pieces:
        known = scales(reference, inputs, training)
    for part in reference.parts(inputs, training):
        mine = _part_of(got, split, part)
        finding, used = _one(part, mine, known if in_pieces else None, context), part
        if finding is not None and finding.category in ("wrong_value", "non_finite"):
            careful = _again(reference, inputs, training, part)
            if careful is not None:
                finding, used = _one(careful, mine, known if in_pieces else None, context), careful
        if finding is None and effects is not None and EFFECTS_FOLLOW:
            finding = _effects(reference, part, effects, context)
        if finding is not None:
            return finding
        for number, at in enumerate(places):
            _sample(samples[number], used, number, at, split, reference.outputs[number], known[number])
    return None


def _part_of(got: Any, split: Any, part: Any) -> list[torch.Tensor]:
    if hasattr(got, "part"):
        return list(got.part(part.start, part.stop))
    if part.stop == 0:
        return list(got)
    return [tensor.narrow(split.dim, part.start, part.stop - part.start) for tensor in got]


def _again(reference: Any, inputs: Any, training: bool | None, part: Any) -> Any:
    """The same part, with sensitivity."""
    if not part.expected.is_double and not any(part.expected.others):
        return None
    return next(
        (found for found in reference.parts(inputs, training, careful=True, only=(part.start, part.stop))), None
    )


def _one(part: Any, got: list[torch.Tensor], known: list[Scale | None] | None, context: str) -> Finding | None:
    expected = part.expected
    if known is None:
        return compare.check(expected, trees_like(expected.structure, got), context)
    for number, tensor in enumerate(got):
        finding = _in_pieces(expected, number, tensor, known[number], part, context, len(got))
        if finding is not None:
            return finding
    return None


def _in_pieces(
    expected: Expected, number: int, got: torch.Tensor, scale: Scale | None, part: Any, context: str, count: int
) -> Finding | None:
    """One output's part in flat pieces; the finding tells of the part that is wrong, its indices from the part's
    start."""
    native, exact = expected.native[number], expected.exact[number]
    sensitivity = expected.sensitivity[number] if number < len(expected.sensitivity) else None
    others = expected.others[number] if number < len(expected.others) else []
    flat = [None if t is None else t.flatten() for t in (got, native, exact, sensitivity, *others)]
    bad = torch.zeros(native.numel(), dtype=torch.bool, device=native.device)
    for start in range(0, native.numel(), PIECE):
        mine, own, wanted, moved, *near = (None if t is None else t[start : start + PIECE] for t in flat)
        if mine is None or own is None or wanted is None:
            raise AssertionError("outputs are tensors")
        if not is_inexact(own):
            wrong = mine != own
            for other in near:
                wrong &= mine != other
        elif own.is_complex():
            piece = Expected(structure=["tensor"], native=[own], exact=[wanted], is_double=expected.is_double)
            odd, off = tolerance.wrong_elements(piece, 0, mine)
            wrong = odd | off
        elif scale is not None and tolerance.surely_close(mine, wanted, own.dtype, scale[2]):
            continue
        else:
            allowed = tolerance.bound(own, wanted, expected.is_double, moved, expected.terms, scale)
            close = (mine.double() - wanted.double()).abs() <= allowed
            same = (mine == own) | (torch.isnan(mine) & torch.isnan(own)) | (mine == wanted.to(mine.dtype))
            wrong = torch.where(torch.isfinite(own) & torch.isfinite(wanted), ~close, ~same)
        bad[start : start + PIECE] = wrong
    if not bool(bad.any()):
        return None
    bad = bad.view(native.shape)
    name = "output" if count == 1 else f"output {number}"
    where = f"In the range {part.start:,} to {part.stop:,} (indices from its start)." if part.stop else ""
    odd_value = native.is_floating_point() and bool((~torch.isfinite(got[bad])).any())
    category = "non_finite" if odd_value else "wrong_value"
    return compare._report(category, name, got, exact, bad, where, context)


def _effects(reference: Any, part: Any, got: list[torch.Tensor], context: str) -> Finding | None:
    if part.effects is None:
        return None
    for number, name in enumerate(reference.effect_names):
        alone = msgspec.structs.replace(
            part.effects, structure=["tensor"], native=[part.effects.native[number]],
            exact=[part.effects.exact[number]], others=[], sensitivity=[],
        )  # fmt: skip
        finding = compare.check(alone, got[number], context)
        if finding is not None:
            is_input = number < len(reference.mutated)
            detail = "Model changes it in the call, so ModelNew must."
            return msgspec.structs.replace(
                finding,
                category="input_mutated" if is_input else "state_mutated",
                headline=f"after the call {name}: {finding.headline.removeprefix('output')}",
                detail=f"{detail} {finding.detail}",
            )
    return None


def _sample(
    samples: Samples, part: Any, number: int, places: torch.Tensor, split: Any, whole: torch.Tensor,
    scale: Scale | None,
) -> None:  # fmt: skip
    """Note the part's right values at those of the `places` (flat indices of the whole output) that lie in it."""
    expected = part.expected
    native, exact = expected.native[number], expected.exact[number]
    if not native.numel():
        return
    at, here = places, torch.ones_like(places, dtype=torch.bool)
    if part.stop:
        inner = math.prod(whole.shape[split.dim + 1 :])
        index = places // inner % split.size
        here = (index >= part.start) & (index < part.stop)
        outer = places // (inner * split.size)
        at = (outer * (part.stop - part.start) + index - part.start) * inner + places % inner
        at = at[here]
    if not at.numel():
        return
    right = exact.flatten()[at]
    if not is_inexact(native):  # where roundings decide (an argmax of near ties), any of the answers was right
        for other in expected.others[number] if number < len(expected.others) else []:
            unsure = other.flatten()[at] != native.flatten()[at]
            allowed_here = torch.zeros(at.shape, dtype=torch.float64, device=at.device)
            samples.allowed[here] = torch.maximum(samples.allowed[here], allowed_here.masked_fill(unsure, math.inf))
    samples.wanted[here] = (right.real if right.is_complex() else right).to(samples.wanted.dtype)
    if native.is_floating_point():
        if scale is None:
            wide = exact.double()
            known = torch.isfinite(wide) & torch.isfinite(native)
            scale = tolerance.scale_of(wide[known]) if bool(known.any()) else (0.0, 0.0, 0.0)
        moved = expected.sensitivity[number] if number < len(expected.sensitivity) else None
        nearby = None if moved is None else moved.flatten()[at]
        # The gap to float64 at these places alone may be small where the whole output's is not.
        allowed = 2 * tolerance.bound(native.flatten()[at], right, expected.is_double, nearby, expected.terms, scale)
        samples.allowed[here] = allowed
    elif native.is_complex():
        samples.allowed[here] = 1e-2 * right.abs().double() + 1e-6


def trees_like(structure: Any, tensors: list[torch.Tensor]) -> Any:
    """The nested value of a structure (`trees.flatten`) and its tensors in order."""
    return _made(structure, iter(tensors))


def _made(node: Any, remaining: Any) -> Any:
    kind, *body = node
    if kind == "tensor":
        return next(remaining)
    if kind == "sequence":
        return [_made(part, remaining) for part in body[0]]
    if kind == "dict":
        return {key: _made(part, remaining) for key, part in body[0].items()}
    return body[0]
