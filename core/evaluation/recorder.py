"""What torch does inside the candidate's forward: every aten operator is recorded, fresh memory is poisoned, and a GPU
is pretended.

Recording is by behaviour, not by text: a candidate that computes with torch under any spelling shows here. Memory from
torch.empty is filled with NaN (or an odd number) so that what no kernel wrote can't be right by accident. Candidates are
written for a GPU; on this tier `device="cuda"`, `.cuda()` and `x.is_cuda` mean the CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
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


def _on_cpu(device: Any) -> Any:
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cpu")
    if isinstance(device, (str, torch.device)) and str(device).split(":")[0] in ("cuda", "hip"):
        return torch.device("cpu")
    return device


class PretendCuda(TorchFunctionMode):
    """Device arguments that name a GPU mean the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        if getattr(func, "__name__", "") == "to" and len(args) > 1:
            args = (args[0], *(_on_cpu(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args[1:]))
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


class _Properties:
    """A card as candidates ask for it to size their grids."""

    name = "KernelMill CPU tier"
    major, minor = 9, 0
    multi_processor_count = 132
    total_memory = 80 * 2**30
    warp_size = 32
    max_threads_per_multi_processor = 2048
    shared_memory_per_block_optin = 232448
    L2_cache_size = 50 * 2**20


def pretend_cuda() -> None:
    """Patch torch's public device questions; torch itself is not fooled, it computes on the CPU."""

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    def same(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    class _Nothing:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def __enter__(self) -> "_Nothing":
            return self

        def __exit__(self, *error: Any) -> None: ...

    torch.Tensor.cuda = same  # type: ignore[method-assign,assignment]
    torch.nn.Module.cuda = same  # type: ignore[method-assign,assignment]
    torch.Tensor.is_cuda = property(constant(True))  # type: ignore[assignment,misc]
    to = torch.nn.Module.to

    def module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = {key: _on_cpu(value) if key == "device" else value for key, value in kwargs.items()}
        return to(self, *(_on_cpu(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args), **kwargs)

    torch.nn.Module.to = module_to  # type: ignore[method-assign,assignment]
    cuda = torch.cuda
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "synchronize": None, "empty_cache": None,
        "get_device_capability": (9, 0), "get_device_name": _Properties.name, "get_device_properties": _Properties(),
        "set_device": None, "is_initialized": True, "init": None, "manual_seed": None, "manual_seed_all": None,
        "is_bf16_supported": True, "reset_peak_memory_stats": None, "max_memory_allocated": 0,
    }  # fmt: skip
    for name, value in answers.items():
        setattr(cuda, name, constant(value))
    cuda.device = _Nothing  # type: ignore[misc,assignment]
    cuda.device_of = _Nothing  # type: ignore[misc,assignment]
