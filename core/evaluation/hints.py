"""What wrong values look like: the likely cause in one sentence, for the policy.

Every pattern is checked on the numbers (two candidates for one cause never share a text by accident): a hint is given
only where it explains all wrong elements.
"""

import torch

MAX_BLOCK = 4096
MIN_BLOCK = 16
CONSTANT_REST = 0.1
"""What of a constant error may not be constant, as a share."""


def hint(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    """A sentence that ends in a full stop, or ''. All float64 of one shape, `bad` bool; `allowed` is the tolerance."""
    for look in (_uniform, _scaled, _order, _offset, _rounded, _place, _normalised):
        text = look(got, wanted, bad, 4 * allowed)
        if text:
            return text
    return ""


def _close(got: torch.Tensor, wanted: torch.Tensor, allowed: torch.Tensor) -> bool:
    return got.numel() > 0 and bool(((got - wanted).abs() <= allowed).all())


def _uniform(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    if got.numel() < 2:
        return ""
    if not bool(got.any()):
        return "The output is all zeros."
    if bool((got == got.flatten()[0]).all()):
        return "Every element is the same."
    if int(bad.sum()) > 1 and not bool(got[bad].any()):
        where = _place(got, wanted, bad, allowed)
        return f"All wrong elements are zero.{' ' + where if where else ''}"
    return ""


def _scaled(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    result, right = got[bad], wanted[bad]
    sure = right.abs() > 8 * allowed[bad]
    if not bool(sure.any()):
        return ""
    ratio = float((result[sure] / right[sure]).median())
    if not torch.isfinite(torch.tensor(ratio)) or not _close(
        result, ratio * right, allowed[bad] * max(1.0, abs(ratio)) + 1e-3 * right.abs()
    ):
        return ""
    if abs(ratio + 1) < 1e-3:
        return "The sign is flipped."
    if int(bad.sum()) > 3 and abs(ratio) > 1e-6 and abs(ratio - 1) > 2e-3:
        return f"Wrong values are {ratio:.4g} times the right ones."
    return ""


def _order(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    """Right values in wrong places."""
    if wanted.numel() < 4 or bool((wanted == wanted.flatten()[0]).all()):
        return ""
    most = allowed.max()
    if _close(got, wanted, most):
        return ""  # they are in their own places as well
    if wanted.dim() >= 2:
        rows, columns = wanted.shape[-2:]
        turned = got.reshape(*got.shape[:-2], columns, rows).mT
        if min(rows, columns) > 1 and _close(turned, wanted, most):
            return "The values are right but transposed."
        if rows > 2 and _close(got[..., 1:, :], wanted[..., :-1, :], most):
            return "Every row holds the result of the row before it."
        if rows > 2 and _close(got[..., :-1, :], wanted[..., 1:, :], most):
            return "Every row holds the result of the row after it."
    flat, right = got.flatten(), wanted.flatten()
    if _close(flat[1:], right[:-1], most) or _close(flat[:-1], right[1:], most):
        return "The values are off by one element."
    if _close(flat.flip(0), right, most):
        return "The values are in reverse order."
    if _close(flat.sort().values, right.sort().values, most):
        return "The right values are in the wrong places."
    return ""


def _offset(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    """An error that is the same all over, or along one dimension: nothing that rounding gives."""
    error = got - wanted
    if got.numel() < 4:
        return ""
    if _constant(error, error.mean(), allowed):
        return f"Every element is off by {float(error.mean()):.4g}."
    if error.dim() < 2 or min(error.shape[-1], error.numel() // error.shape[-1]) < 2:
        return ""
    if error.dim() >= 3:
        planes, most = error.flatten(2), allowed.flatten(2)
        if _constant(planes, planes.mean((0, 2), keepdim=True), most):
            return "The error is constant per channel: a term per channel (a bias?) is missing or wrong."
    lines, most = error.reshape(-1, error.shape[-1]), allowed.reshape(-1, error.shape[-1])
    if _constant(lines, lines.mean(0, keepdim=True), most):
        return "The error is the same in every row: a term per column (a bias?) is missing or wrong."
    if _constant(lines, lines.mean(1, keepdim=True), most):
        return "The error is constant along each row: a term per row is missing or wrong."
    return ""


def _constant(error: torch.Tensor, common: torch.Tensor, allowed: torch.Tensor) -> bool:
    """Whether `common` is what is wrong: nearly all of the error, not the mean of differences that go both ways."""
    rest = error - common
    mostly = rest.square().mean() <= CONSTANT_REST**2 * error.square().mean()
    return bool(mostly) and _close(error, common.expand_as(error), allowed)


def _rounded(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    scale = wanted.abs() + wanted.square().mean().sqrt()
    worst = float(((got - wanted).abs() / scale.clamp(min=1e-300)).max())
    if worst <= 2e-3:
        return (
            "Differences are as small as float16 or TF32 rounding gives, or an approximate formula: keep all steps in "
            "float32, and compute the function itself."
        )
    if worst <= 1e-2 and float(bad.float().mean()) > 0.3:
        return (
            "Differences are as small as bfloat16 rounding gives, or a rough formula: keep all steps in float32, and "
            "compute the function itself."
        )
    return ""


def _place(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    """Where the wrong elements are."""
    flat = bad.flatten()
    count = flat.numel()
    first = int(flat.nonzero()[0])
    if bool(flat.all()):
        return ""
    if bad.dim() >= 2 and bad.shape[-1] > 1:
        lines = bad.reshape(-1, bad.shape[-1])
        rows, columns = lines.any(1), lines.any(0)
        if not bool(rows[0]) and bool(rows[1:].all()) and rows.numel() > 2:
            return "Only the first row is right."
        if not bool(rows[:-1].any()):
            return "Only the last row is wrong."
        start = int(columns.nonzero()[0])
        if start and bool(lines[rows][:, start:].float().mean() > 0.9) and rows.float().mean() > 0.5:
            return f"In each row the columns from {start:,} on are wrong{blocks(start)}."
    if first and not bool(flat[first:].all()) and bool(flat[first:].float().mean() > 0.9):
        return f"Nearly all from element {first:,} on is wrong{blocks(first)}."
    if not bool(flat[: count - 1].any()):
        return "Only the last element is wrong."
    return ""


def blocks(first: int) -> str:
    """`, a multiple of 256 (...)` when a block may start at element `first`."""
    block = min(first & -first, MAX_BLOCK)
    return f", a multiple of {block} (is the last block launched and stored?)" if block >= MIN_BLOCK else ""


def _normalised(got: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor, allowed: torch.Tensor) -> str:
    for dim in range(wanted.dim() - 1, -1, -1):
        if wanted.shape[dim] < 2 or bool((wanted < 0).any()):
            continue
        right, sums = wanted.sum(dim), got.sum(dim)
        if _close(right, torch.ones_like(right), torch.full_like(right, 1e-3)):
            worst = float(sums.flatten()[(sums - 1).abs().argmax()])
            if abs(worst - 1) > 1e-2:
                return f"Sums over dimension {dim} should be 1; one is {worst:.4g}."
            return ""
    return ""
