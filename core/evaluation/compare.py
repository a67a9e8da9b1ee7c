"""Whether an output is right: exact in type, dtype, shape and structure, close in value to a float64 reference.

Tolerance of an element, with c and s the centre and spread of the expected output, n the largest difference between the
reference's own precision and float64:

    rel * (|wanted - c| + s) + steps * eps * |wanted| + 16 n

It is relative to how much the output varies, not to its size: on an output of 280,000 +- 20 the constant 280,000 is
wrong, and on an output of 0.003 a zero is wrong. `rel` and `steps` follow the dtype (`TOLERANCE`).
"""

import math
from typing import Any

import msgspec
import torch

from core.evaluation.findings import Finding
from core.evaluation.reference import Expected, flatten

TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-6, 32.0),
    torch.float32: (2e-4, 32.0),
    torch.float16: (4e-3, 4.0),
    torch.bfloat16: (2e-2, 4.0),
}
"""dtype -> (rel, steps)"""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """The first wrong element of an output."""

    index: tuple[int, ...]
    got: float
    wanted: float
    wrong: int
    count: int
    hint: str


def _fail(category: str, headline: str, detail: str = "") -> Finding:
    return Finding(stage="correctness", category=category, headline=headline, detail=detail)


def check(expected: Expected, got: Any, context: str = "") -> Finding | None:
    """Compare one call's output (decoded) with what was expected; `context` says which inputs, for the feedback."""
    structure, tensors = flatten(got)
    if _shape_of(structure) != _shape_of(expected.structure):
        wanted = describe(expected.structure, expected.native)
        return _fail("wrong_structure", f"forward returned {describe(structure, tensors)}, wanted {wanted}")
    for number, (tensor, native) in enumerate(zip(tensors, expected.native, strict=True)):
        name = "output" if len(tensors) == 1 else f"output {number}"
        if tensor.dtype != native.dtype:
            return _fail("wrong_dtype", f"{name} is {_short(tensor.dtype)}, wanted {_short(native.dtype)}")
        if tensor.shape != native.shape:
            return _fail("wrong_shape", f"{name} has shape {tuple(tensor.shape)}, wanted {tuple(native.shape)}")
    problem = _values_differ(structure, expected.structure)
    if problem:
        return _fail("wrong_value", problem)
    for number, (tensor, native, exact) in enumerate(zip(tensors, expected.native, expected.exact, strict=True)):
        name = "output" if len(tensors) == 1 else f"output {number}"
        finding = _compare(name, tensor, native, exact, expected.is_double, context)
        if finding is not None:
            return finding
    return None


def _shape_of(structure: Any) -> Any:
    kind, *body = structure
    if kind == "sequence":
        return [kind, [_shape_of(part) for part in body[0]]]
    if kind == "dict":
        return [kind, {key: _shape_of(part) for key, part in body[0].items()}]
    return [kind]


def _values_differ(got: Any, wanted: Any) -> str:
    """Compare what is not a tensor."""
    kind = got[0]
    if kind == "value" and got[1] != wanted[1]:
        close = (
            isinstance(got[1], float)
            and isinstance(wanted[1], (int, float))
            and math.isclose(got[1], wanted[1], rel_tol=1e-4)
        )
        return "" if close else f"forward returned {got[1]!r}, wanted {wanted[1]!r}"
    if kind in ("sequence", "dict"):
        pairs = (
            zip(got[1], wanted[1], strict=True)
            if kind == "sequence"
            else ((got[1][key], wanted[1][key]) for key in got[1])
        )
        return next((text for a, b in pairs if (text := _values_differ(a, b))), "")
    return ""


def describe(structure: Any, tensors: list[torch.Tensor]) -> str:
    """`a tuple of 2 tensors`, for people."""
    kind = structure[0]
    if kind == "tensor":
        return "one tensor"
    if kind == "sequence":
        return f"a tuple of {len(structure[1])}"
    if kind == "dict":
        return f"a dict of {len(structure[1])}"
    return "nothing" if structure[1] is None else f"a {type(structure[1]).__name__}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tolerance(native: torch.Tensor, exact: torch.Tensor, is_double: bool) -> torch.Tensor:
    """Allowed difference of every element, float64, in the shape of `exact`."""
    rel, steps = TOLERANCE.get(native.dtype, TOLERANCE[torch.float32])
    wanted = exact.double()
    finite = wanted[torch.isfinite(wanted)]
    if finite.numel() == 0:
        return torch.zeros_like(wanted)
    centre, rms = float(finite.mean()), float(finite.square().mean().sqrt())
    spread = max(float(finite.std()) if finite.numel() > 1 else 0.0, 0.05 * rms, 1e-30)
    eps = torch.finfo(native.dtype).eps
    noise = 0.0
    if is_double:
        gap = (native.double() - wanted).abs()
        gap = gap[torch.isfinite(gap)]
        noise = float(gap.max()) if gap.numel() else 0.0
    noise = min(noise, 1e-2 * spread + 1e-4 * float(finite.abs().max()))
    factor = 1.0 if is_double else 2.0
    return factor * rel * ((wanted - centre).abs() + spread) + steps * eps * wanted.abs() + 16 * noise


def _compare(
    name: str, got: torch.Tensor, native: torch.Tensor, exact: torch.Tensor, is_double: bool, context: str
) -> Finding | None:
    if not native.is_floating_point():
        if native.is_complex():
            pairs = [(torch.view_as_real(t.resolve_conj())) for t in (got, native, exact)]
            return _compare(name, pairs[0], pairs[1], pairs[2], False, context)
        bad = got != native
        return _report("wrong_value", name, got, native, bad, "", context) if bool(bad.any()) else None
    result, wanted = got.double(), exact.double()
    # Where the task's own precision overflows and float64 does not, either is right.
    judged = torch.isfinite(native) == torch.isfinite(wanted.to(native.dtype))
    same = (torch.isnan(result) & torch.isnan(wanted)) | (result == wanted)
    finite = torch.isfinite(wanted) & torch.isfinite(native)
    odd = judged & ~same & (~torch.isfinite(result) | ~finite) & ~(torch.isfinite(result) & finite)
    if bool(odd.any()):
        hint = ""
        if bool((torch.isnan(result) & finite).any()):
            hint = "NaN where no kernel wrote, or from the arithmetic (fresh memory is filled with NaN). "
        return _report("non_finite", name, got, wanted, odd, hint, context)
    allowed = tolerance(native, exact, is_double)
    bad = finite & ((result - wanted).abs() > allowed)
    if bool(bad.any()):
        return _report("wrong_value", name, got, wanted, bad, _hint(result, wanted, bad), context)
    return None


def _hint(result: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor) -> str:
    """What the wrong values look like."""
    if result.numel() > 1 and not bool(result.any()):
        return "The output is all zeros. "
    ratio = (result[bad] / wanted[bad]).median()
    if bool(torch.isfinite(ratio)) and bool(
        ((result[bad] - ratio * wanted[bad]).abs() <= 1e-3 * wanted[bad].abs() + 1e-6).all()
    ):
        if abs(float(ratio) + 1) < 1e-3:
            return "The sign is flipped. "
        if int(bad.sum()) > 3:
            return f"Wrong values are {float(ratio):.4g} times the right ones. "
    return ""


def _report(
    category: str, name: str, got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, hint: str, context: str
) -> Finding:
    flat = bad.flatten()
    first = int(flat.nonzero()[0])
    index = [int(part) for part in torch.unravel_index(torch.tensor(first), bad.shape)] if bad.dim() else []
    count, wrong = flat.numel(), int(flat.sum())
    place = f"{name}[{', '.join(map(str, index))}]" if index else name
    headline = f"{place} = {_number(got.flatten()[first])}, wanted {_number(wanted.flatten()[first])}"
    parts = [f"{wrong:,} of {count:,} elements are wrong"]
    if wrong < count and not bool((~flat[first:]).any()):
        parts[0] += f", all from element {first:,} on"
    if wanted.is_floating_point():
        finite = wanted[torch.isfinite(wanted)]
        if finite.numel():
            parts[0] += f"; the output's scale is {float(finite.square().mean().sqrt()):.3g}"
    if context:
        parts.append(context)
    return _fail(category, headline, ". ".join(parts) + ". " + hint if hint else ". ".join(parts) + ".")


def _number(value: torch.Tensor) -> str:
    return f"{float(value):.5g}" if value.is_floating_point() else str(value.item())


def surviving(expected: Expected, got: Any) -> float:
    """temporary"""
    structure, tensors = flatten(got)
    right = total = 0
    for tensor, native, exact in zip(tensors, expected.native, expected.exact, strict=True):
        if native.is_floating_point():
            ok = (tensor.double() - exact.double()).abs() <= tolerance(native, exact, expected.is_double)
        else:
            ok = tensor == native
        right += int(ok.sum()); total += ok.numel()
    return right / max(1, total)
