"""How far an output may be from the right one, element by element, derived from the task and its data.

With w the wanted element (float64 where the module allows it), c and s the centre and spread of the output:

    rel (|w - c| + s)  +  (steps + sqrt(terms) / 4) eps |w|  +  16 noise  +  64 sensitivity
      +  min(4 eps, 1e-4 (|w - c| + s))  +  smallest normal number

- centre and spread are those of what was computed: a value that only fills places (-1e9 under a mask) is left out.
- rel, steps follow the dtype (`TOLERANCE`); terms is the number of elements that go into one: the error of a sum in
  another order grows with its square root.
- noise is the difference between the reference in its own precision and in float64, beyond the rounding of the output:
  what its intermediate roundings cost (cancellation, large intermediate values). 4 times it for low precision.
- sensitivity is how far the float64 output moves when every input and parameter moves by one float32 rounding: what no
  float32 kernel can promise on ill-conditioned elements. A kernel that rounds to float16 or TF32 moves them by 8192
  such roundings, bfloat16 by 65536, so 64 keeps both sides apart.
- 4 eps are the roundings of intermediate values near 1 that a usual formula has and the reference need not have
  (2 sigmoid(2x) - 1 for tanh, exp(x) - 1 near 0); never so much that it would hide float16.
The bound is relative to how much the output varies, not to its size: on 280,000 +- 20 the constant 280,000 is wrong,
on an output of 0.003 a zero is wrong. No mean over elements is taken anywhere, so one wrong row is wrong.
"""

import math
from typing import Any

import msgspec
import torch

from core.evaluation.trees import flatten

TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-6, 32.0),
    torch.float32: (5e-5, 8.0),
    torch.float16: (2e-3, 3.0),
    torch.bfloat16: (1.2e-2, 3.0),
}
"""dtype -> (rel, steps)"""
UNCERTAIN = 5.0
"""Factor on `rel` where the module could not be computed in float64: both sides round then."""


FAR = 0.01
"""Where a repeated value is left out, the others vary by less than this share of what all together do."""


class Expected(msgspec.Struct, kw_only=True):
    """What one call must give."""

    structure: Any
    """Nesting of the output with tensors replaced by a mark."""
    native: list[torch.Tensor]
    """Outputs in the task's own precision: dtype and shape that are demanded."""
    exact: list[torch.Tensor]
    """The same computed in float64 (where that was possible)."""
    is_double: bool
    sensitivity: list[torch.Tensor | None] = []
    """Per output, float64 differences under one float32 rounding of inputs and parameters; None where not known."""
    others: list[list[torch.Tensor]] = []
    """Per output that is not floating point: what it is under such roundings, right answers near a tie."""
    terms: float = 1.0
    """Elements that go into one output element, about."""


def tolerance(expected: Expected, number: int) -> torch.Tensor:
    """Allowed difference of every element of output `number`, float64, in its shape."""
    native, exact = expected.native[number], expected.exact[number]
    sensitivity = expected.sensitivity[number] if number < len(expected.sensitivity) else None
    return bound(native, exact, expected.is_double, sensitivity, expected.terms)


def bound(
    native: torch.Tensor,
    exact: torch.Tensor,
    is_double: bool,
    sensitivity: torch.Tensor | None = None,
    terms: float = 1.0,
    scale: tuple[float, float, float] | None = None,
) -> torch.Tensor:
    """The tolerance from its parts; all tensors have one shape. `scale` is the (centre, largest, spread) of the whole
    output where these tensors are a part of it."""
    rel, steps = TOLERANCE.get(native.dtype, TOLERANCE[torch.float32])
    wanted = exact.double()
    known = torch.isfinite(wanted) & torch.isfinite(native)
    finite = wanted[known]
    if finite.numel() == 0:
        return torch.zeros_like(wanted)
    info = torch.finfo(native.dtype)
    centre, largest, spread = scale or scale_of(finite)
    size = (wanted - centre).abs() + spread
    exactly = is_double and exact.dtype == torch.float64
    if not exactly and native.dtype == torch.float32:
        rel *= UNCERTAIN
    allowed = rel * size + (steps + 0.25 * math.sqrt(terms)) * info.eps * wanted.abs()
    if exactly:
        gap = torch.where(known, (native.double() - wanted).abs() - 0.5 * info.eps * wanted.abs(), 0.0).clamp(min=0)
        most = min(float(gap.max()), 1e-2 * spread + 1e-4 * largest)
        relative = min(float((gap / size.clamp(min=1e-300)).max()), 1e-2)
        allowed += (16 if info.eps < 1e-6 else 4) * torch.minimum(relative * size, torch.full_like(size, most))
    if sensitivity is not None:
        moved = torch.nan_to_num(sensitivity, nan=0.0, posinf=0.0)
        allowed += torch.minimum(64 * moved, 1e-2 * size)
    if native.dtype == torch.float32:
        allowed += torch.clamp(1e-4 * size, max=4 * info.eps)
    floor = info.tiny if native.dtype != torch.float16 else info.smallest_normal / 1024
    return torch.nan_to_num(allowed, nan=0.0) + floor


def surely_close(got: torch.Tensor, exact: torch.Tensor, native_type: torch.dtype, spread: float) -> bool:
    """Whether all elements are finite and within what `bound` allows everywhere, `rel * spread`: two passes over memory
    where the bound itself takes some forty. False says nothing."""
    if not got.numel() or exact.dtype != torch.float64:
        return not got.numel()
    rel, _ = TOLERANCE.get(native_type, TOLERANCE[torch.float32])
    # A NaN or an infinity on either side makes the norm one, and that is not below anything.
    return bool(torch.linalg.vector_norm(exact - got, ord=math.inf) <= rel * spread)


def scale_of(finite: torch.Tensor) -> tuple[float, float, float]:
    """(centre, largest size, spread) of an output's finite elements, float64.

    A value that fills many places far from all others, such as -1e9 under a mask, does not count: by its size nothing
    could be wrong elsewhere.
    """
    found = _moments(finite)
    for end in (torch.amin, torch.amax):
        rest = finite[finite != end(finite)]
        if rest.numel() and finite.numel() - rest.numel() > 1 and 0 < (inner := _moments(rest))[2] < FAR * found[2]:
            finite, found = rest, inner
    return found


def _moments(finite: torch.Tensor) -> tuple[float, float, float]:
    centre, largest = float(finite.mean()), float(finite.abs().max())
    rms = float((finite / largest).square().mean().sqrt()) * largest if largest else 0.0
    spread = float(((finite - centre) / largest).square().mean().sqrt()) * largest if largest else 0.0
    return centre, largest, max(spread, 0.05 * rms)


def wrong_elements(expected: Expected, number: int, got: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(not finite where that is wrong, too far off) as masks in the output's shape; `got` has its dtype and shape.

    Where the task's own precision overflows and float64 does not, both not finite and near float64's is right. Integers
    and booleans are exact, but for elements that one rounding of an input turns over: those may be any value seen.
    """
    native, exact = expected.native[number], expected.exact[number]
    nowhere = torch.zeros(native.shape, dtype=torch.bool)
    if native.is_complex():
        parts = [torch.view_as_real(t.resolve_conj()) for t in (got, native, exact)]
        pair = Expected(structure=["tensor"], native=[parts[1]], exact=[parts[2]], is_double=expected.is_double)
        odd, bad = wrong_elements(pair, 0, parts[0])
        return odd.any(-1), bad.any(-1)
    if not native.is_floating_point():
        bad = got != native
        for other in expected.others[number] if number < len(expected.others) else []:
            bad &= got != other
        return nowhere, bad
    result, wanted = got.double(), exact.double()
    held = wanted.to(native.dtype).double()
    finite, number_got = torch.isfinite(native) & torch.isfinite(held), torch.isfinite(result)
    same = (torch.isnan(result) & torch.isnan(held)) | (result == held)
    bad = finite & number_got & ((result - wanted).abs() > tolerance(expected, number))
    both = ~torch.isfinite(native) & ~torch.isfinite(held)
    odd = (finite & ~number_got) | (both & ~same)
    # One of the two overflowed: its value or the other's.
    either = ~finite & ~both & number_got
    right = torch.where(torch.isfinite(held), held, native.double())
    bad |= either & ((result - right).abs() > 1e-3 * right.abs())
    return odd, bad


def surviving_each(expected: Expected, got: Any) -> list[float]:
    """Per output, the share of its elements that are right; 0 for an output of another dtype or shape.

    For runs whose kernels were changed on purpose (stores poisoned or left out): an output that survives did not come
    from the kernels. An empty output has share 0, since nothing of it can survive.
    """
    tensors = flatten(got)[1]
    shares = []
    for number, native in enumerate(expected.native):
        tensor = tensors[number] if number < len(tensors) else None
        if tensor is None or tensor.dtype != native.dtype or tensor.shape != native.shape or not native.numel():
            shares.append(0.0)
            continue
        odd, bad = wrong_elements(expected, number, tensor)
        shares.append(1.0 - float((odd | bad).float().mean()))
    return shares


def surviving(expected: Expected, got: Any) -> float:
    """The largest of `surviving_each`: 1.0 when at least one output is wholly right."""
    return max(surviving_each(expected, got), default=0.0)
