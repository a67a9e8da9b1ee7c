"""How far an answer is from right under the judge's rule and under those of other systems: one margin per answer.

A margin is the largest error of any element in units of what a rule allows there. Under the judge's rule it is 1 or
less exactly where the judge itself finds nothing wrong (`tolerance.wrong_elements`); whole numbers, infinities and NaN
are right or miss by `MISS`.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from core.evaluation.tolerance import Expected, tolerance, wrong_elements
from core.tasks.audit import MISS

BLOCK = 2**16
"""Elements that are compared at once: temporaries that stay in the cache are ten times faster than large ones."""
ALLCLOSE = {"allclose_1e-2": 1e-2, "allclose_1e-3": 1e-3, "allclose_1e-4": 1e-4}
ROUNDED = {"bf16_1e-2": 1e-2, "bf16_2e-2": 2e-2}
NUMBER_REL = 1e-4
"""What the judge allows a returned Python float (compare.py)."""


class Judged:
    """The judge's rule for one output of one call; what is allowed is worked out once for all answers."""

    def __init__(self, expected: Expected, number: int) -> None:
        native, exact = expected.native[number], expected.exact[number]
        self._as_given = expected, number
        self._floating = native.is_floating_point() or native.is_complex()
        if native.is_complex():  # as wrong_elements does
            native, exact = _real(native), _real(exact)
            expected = Expected(structure=["tensor"], native=[native], exact=[exact], is_double=expected.is_double)
            number = 0
        self._allowed = tolerance(expected, number) if self._floating else None
        finite = torch.isfinite(native) & torch.isfinite(exact.to(native.dtype))
        self._finite = self._floating and bool(finite.all())
        # Where one of the two overflowed there is nothing to measure by; wrong_elements knows what is right there.
        self._right = exact if self._finite else torch.where(finite, exact, math.nan) if self._floating else native

    def margin(self, got: torch.Tensor) -> float:
        """Of an answer in the output's dtype and shape."""
        worst = 0.0
        if self._allowed is not None:
            worst = ratio(_real(got), self._right, self._allowed, finite_only=not self._finite)
            if worst > 1 or (self._finite and worst <= 0.999):
                return worst
        odd, bad = wrong_elements(*self._as_given, got)
        if not bool((odd | bad).any()):
            return min(worst, 1.0)
        return worst if worst > 1 else MISS


def ratio(got: torch.Tensor, right: torch.Tensor, allowed: torch.Tensor, *, finite_only: bool = False) -> float:
    """The largest |got - right| / allowed; MISS at most, and where one of both is not finite and they differ."""
    worst = 0.0
    parts = [tensor.reshape(-1).split(BLOCK) for tensor in (got, right, allowed)]
    for mine, true, limit in zip(*parts, strict=True):
        mine, true = mine.double(), true.double()
        share = (mine - true).abs_().div_(limit)
        share[mine == true] = 0.0
        if finite_only:
            share[~torch.isfinite(mine) | ~torch.isfinite(true)] = 0.0
        worst = max(worst, float(share.nan_to_num_(nan=MISS, posinf=MISS).max()) if share.numel() else 0.0)
    return min(worst, MISS)


def others(native: torch.Tensor, got: torch.Tensor) -> Iterator[tuple[str, float]]:
    """(rule, margin) of an answer under other systems' tolerances, which know no float64."""
    mine, right = _real(got), _real(native).double()
    for rule, limit in ALLCLOSE.items():
        yield rule, ratio(mine, right, limit + limit * right.abs())
    if native.is_floating_point():
        mine, right = got.bfloat16(), native.bfloat16().double()
    for rule, limit in ROUNDED.items():
        yield rule, ratio(mine, right, limit + limit * right.abs())


def number_margins(right: Any, got: Any) -> Iterator[tuple[str, float]]:
    """(rule, margin) of a returned number; `scaled` is what the judge demands of it."""
    error = abs(got - right)
    for rule, limit in (ALLCLOSE | ROUNDED).items():
        yield rule, min(error / (limit + limit * abs(right)), MISS)
    allowed = NUMBER_REL * max(abs(got), abs(right)) if isinstance(right, float) else 0.0
    same = got == right or (isinstance(right, float) and math.isnan(got) and math.isnan(right))
    yield "scaled", 0.0 if same else min(error / allowed, MISS) if allowed else MISS


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
