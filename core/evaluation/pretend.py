"""A GPU is pretended: candidates are written for one, and on this tier everything that names it means the CPU.

`device="cuda"`, `.cuda()`, `x.is_cuda`, the questions about the card that size a grid, and Triton's active driver.
torch itself is not fooled; only what candidates call from Python is.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver


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
    torch.Tensor.is_cuda = property(constant(True))  # type: ignore[assignment]
    to = torch.nn.Module.to

    def module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = {key: _on_cpu(value) if key == "device" else value for key, value in kwargs.items()}
        return to(self, *(_on_cpu(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args), **kwargs)

    torch.nn.Module.to = module_to  # type: ignore[method-assign]
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


def pretend_driver(target: GPUTarget) -> None:
    """Modules ask the active driver for its device and target while they are imported; there is none here."""
    answers = {
        "get_active_torch_device": lambda: torch.device("cuda"),
        "get_current_target": lambda: target,
        "get_current_device": lambda: 0,
        "get_current_stream": lambda device=0: 0,
        "is_active": lambda: True,
        "utils": SimpleNamespace(
            get_device_properties=lambda device=0: {
                "multiprocessor_count": 132, "max_shared_mem": 232448, "max_num_regs": 65536,
                "warpSize": target.warp_size,
            }
        ),
    }  # fmt: skip
    driver.set_active(SimpleNamespace(**answers))
