"""Whether a module gives the same output twice: what drops at random can't be compared."""

import os
from collections.abc import Callable
from typing import Any

import torch

from core.evaluation import trees


def twice_alike(forward: Callable[[], Any]) -> bool:
    """Run twice under different seeds; not finite values count as equal, and roundings of atomic sums."""
    outputs = []
    for _ in range(2):
        seed = int.from_bytes(os.urandom(6), "little")
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)
        outputs.append([tensor.clone() for tensor in trees.flatten(forward())[1]])
    return all(a.shape == b.shape and _alike(a, b) for a, b in zip(*outputs, strict=True))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()) or not a.numel():
        return torch.equal(a, b)
    known = torch.isfinite(a) & torch.isfinite(b)
    if a.is_floating_point():
        size = float(a[known].abs().max()) if bool(known.any()) else 0.0
        return bool(((a - b)[known].abs() <= 64 * torch.finfo(a.dtype).eps * size).all())
    return bool(torch.allclose(a[known], b[known]))
