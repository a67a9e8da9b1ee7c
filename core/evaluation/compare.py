"""Whether an output is right: exact in type, dtype, shape and structure, close in value (tolerance.py).

The finding of a wrong value names the first wrong element with what was got and wanted, how many are wrong, the
output's scale, and what the pattern looks like (hints.py).
"""

import math
from typing import Any

import torch

from core.evaluation.findings import Finding
from core.evaluation.hints import blocks, hint
from core.evaluation.tolerance import Expected, tolerance, wrong_elements
from core.evaluation.trees import flatten


def _fail(category: str, headline: str, detail: str = "") -> Finding:
    return Finding(stage="correctness", category=category, headline=headline, detail=detail)


def check(expected: Expected, got: Any, context: str = "") -> Finding | None:
    """Compare one call's output (decoded) with what was expected; `context` says which inputs, for the feedback."""
    structure, tensors = flatten(got)
    problem = structures_differ(structure, expected.structure)
    if problem:
        return _fail("wrong_structure", problem)
    for number, (tensor, native) in enumerate(zip(tensors, expected.native, strict=True)):
        name = "output" if len(tensors) == 1 else f"output {number}"
        if tensor.dtype != native.dtype:
            return _fail("wrong_dtype", f"{name} is {_short(tensor.dtype)}, wanted {_short(native.dtype)}")
        if tensor.shape != native.shape:
            return _fail("wrong_shape", f"{name} has shape {tuple(tensor.shape)}, wanted {tuple(native.shape)}")
    problem = _values_differ(structure, expected.structure)
    if problem:
        return _fail("wrong_value", problem)
    for number, tensor in enumerate(tensors):
        name = "output" if len(tensors) == 1 else f"output {number}"
        finding = _compare(name, expected, number, tensor, context)
        if finding is not None:
            return finding
    return None


def structures_differ(got: Any, wanted: Any) -> str:
    """What is wrong with an output's nesting; a list in place of a tuple is not."""
    if _shape_of(got) == _shape_of(wanted):
        return ""
    if got[0] == wanted[0] and len(got[1]) == len(wanted[1]):  # both would be told alike
        return "forward returned another nesting of tensors than Model does"
    return f"forward returned {describe(got)}, wanted {describe(wanted)}"


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


def describe(structure: Any) -> str:
    """`a tuple of 2`, for people."""
    kind = structure[0]
    if kind == "tensor":
        return "one tensor"
    if kind == "sequence":
        known = [word for word in structure[2:] if word in ("list", "tuple")]
        return f"a {known[0] if known else 'list or tuple'} of {len(structure[1])}"
    if kind == "dict":
        return f"a dict of {len(structure[1])}"
    return "nothing" if structure[1] is None else f"a {type(structure[1]).__name__}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _compare(name: str, expected: Expected, number: int, got: torch.Tensor, context: str) -> Finding | None:
    native, exact = expected.native[number], expected.exact[number]
    odd, bad = wrong_elements(expected, number, got)
    if not bool(odd.any() | bad.any()):
        return None
    if native.is_complex():
        return _report("wrong_value", name, got, exact, odd | bad, "", context)
    if not native.is_floating_point():
        return _report("wrong_value", name, got, native, bad, "", context)
    result, wanted = got.double(), exact.double()
    if bool(odd.any()):
        text = ""
        if bool((torch.isnan(result) & torch.isfinite(wanted)).any()):
            text = "NaN where no kernel wrote, or from the arithmetic (fresh memory is filled with NaN)."
        return _report("non_finite", name, got, wanted, odd, text, context)
    # Where both are not finite they agree; hints look at numbers only.
    agreed = ~torch.isfinite(result) | ~torch.isfinite(wanted)
    text = hint(result.masked_fill(agreed, 0), wanted.masked_fill(agreed, 0), bad, tolerance(expected, number))
    return _report("wrong_value", name, got, wanted, bad, text, context)


def _report(
    category: str, name: str, got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, text: str, context: str
) -> Finding:
    flat = bad.flatten()
    first = int(flat.nonzero()[0])
    index = [int(part) for part in torch.unravel_index(torch.tensor(first), bad.shape)] if bad.dim() else []
    count, wrong = flat.numel(), int(flat.sum())
    place = f"{name}[{', '.join(map(str, index))}]" if index else name
    headline = f"{place} = {_number(got.flatten()[first])}, wanted {_number(wanted.flatten()[first])}"
    wrongs = f"{wrong:,} of {count:,} elements are wrong"
    if wrong < count and not bool((~flat[first:]).any()):
        wrongs += f", all from element {first:,} on{blocks(first) if first else ''}"
    if wanted.is_floating_point():
        finite = wanted[torch.isfinite(wanted)]
        if finite.numel():
            wrongs += f"; the output's scale is {float(finite.abs().max()):.3g} at most"
    parts = [f"{wrongs}.", text, f"{context}." if context else ""]
    return _fail(category, headline, " ".join(part for part in parts if part))


def _number(value: torch.Tensor) -> str:
    if value.is_complex():
        return f"{value.real.item():.5g}{value.imag.item():+.5g}i"
    return f"{float(value):.5g}" if value.is_floating_point() else str(value.item())
