"""What torch does inside the candidate's forward: every aten operator is recorded, and fresh memory is poisoned.

Recording is by behaviour, not by text: a candidate that computes with torch under any spelling shows here. Memory from
torch.empty is filled with NaN (or an odd number) so that what no kernel wrote can't be right by accident.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.evaluation import aten_costs

_POISONED = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
_POISON_INTEGER = 113


def poison(tensor: torch.Tensor) -> None:
    """Fill fresh memory with values that no right answer is likely to hold."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.view(torch.uint8).fill_(1)
    else:
        tensor.fill_(_POISON_INTEGER)


class Recorder(TorchDispatchMode):
    """Operators of one forward, summed by name."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports the whole of torch._dynamo, which takes seconds

    def __init__(self) -> None:
        super().__init__()
        self.operators: dict[str, list[int]] = {}
        """name -> [calls, bytes, flops, is compute]"""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, moved, flops, compute = aten_costs.cost(func, args, kwargs, out)
        if name in _POISONED and isinstance(out, torch.Tensor) and not out.is_meta:
            poison(out)
        entry = self.operators.setdefault(name, [0, 0, 0, int(compute)])
        entry[0] += 1
        entry[1] += moved
        entry[2] += flops
        return out
