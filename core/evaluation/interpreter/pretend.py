"""A GPU is pretended in the host: candidates are written for one, and on this tier everything that names it means us.

`device="cuda"`, `.cuda()`, `x.device`, `x.is_cuda`, streams and events, the questions about the card that size a grid,
and Triton's active driver. torch itself is not fooled; only what candidates call from Python is. What would lie on the
host there is remembered (`places`): a kernel must not get it.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from core.evaluation import remote as remote_
from core.evaluation.interpreter.places import GPU, Places
from core.evaluation.remote import META, DataEscapeError, Remote


class UnsupportedError(NotImplementedError):
    """Right or wrong can't be told on this tier."""


def _names_device(value: Any) -> bool:
    return value is None or isinstance(value, (str, torch.device)) or type(value) is int


def _named_meta(device: Any) -> bool:
    """Whether the candidate, not we, asks for the device that holds no data."""
    return isinstance(device, (str, torch.device)) and device is not META and str(device) == "meta"


_FROM_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)
_INDEXED = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


def _numbers(data: Any) -> Any:
    """Lists of numbers, with the values of tensors in them."""
    if isinstance(data, (list, tuple)):
        return [part.tolist() if isinstance(part, torch.Tensor) else _numbers(part) for part in data]
    return data


def _indices(index: Any) -> Any:
    """Lists in an index as tensors; torch would make them on the tensor's device, which holds no data."""
    if isinstance(index, list):
        return torch.tensor(index, dtype=None if index else torch.long)
    return tuple(map(_indices, index)) if type(index) is tuple else index


def _new_tensor(self: torch.Tensor, data: Any, *, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype or self.dtype, **{"device": self.device, **kwargs})


class PretendCuda(TorchFunctionMode):
    """Device arguments, whatever they name, mean the one that there is; `places` remembers what they would have."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if any(_named_meta(device) for device in (kwargs.get("device"), *args[1:2])):
            raise RuntimeError("a tensor on device 'meta' holds no data")
        asked, given = self._places.asked(name, args, kwargs), (args, dict(kwargs))
        if func in _FROM_NUMBERS:  # torch fills them on the CPU; with a device it would throw the numbers away
            kwargs.pop("device", None)
            args = (_numbers(args[0]), *args[1:]) if args else args
        if func in _INDEXED:
            args = (args[0], _indices(args[1]), *args[2:])
        if kwargs.get("device") is not None:
            kwargs["device"] = META
        if len(args) > 1 and name == "to":
            args = (args[0], *(META if isinstance(arg, (str, torch.device)) else arg for arg in args[1:]))
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return self._places.place(name, asked, *given, func(*args, **kwargs))


class _Properties:
    """A card as candidates ask for it to size their grids."""

    name = "KernelMill CPU tier"
    major, minor = 9, 0
    multi_processor_count = 132
    total_memory = 80 * 2**30
    warp_size = 32
    max_threads_per_multi_processor = 2048
    shared_memory_per_block = 49152
    shared_memory_per_block_optin = 232448
    shared_memory_per_multiprocessor = 233472
    regs_per_multiprocessor = 65536
    L2_cache_size = 50 * 2**20


class _Nothing:
    """A stream, event or device context: everything here happens in order."""

    cuda_stream = 0
    device = torch.device("cuda", 0)

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *error: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def record_event(self, event: Any = None) -> "_Nothing":
        return _Nothing()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 1.0


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _unsupported(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"{what} on the CPU tier")

    return refuse


def pretend_gpu(remote: Remote, places: Places) -> None:
    """Patch torch's public device questions in this process, and the ways by which values leave torch."""
    tensor = torch.Tensor

    def moved(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: places.place(
            name, places.asked(name, (self, *args), kwargs), (self,), {}, self
        )

    pretended: dict[str, Any] = {
        "cuda": moved("cuda"),
        "cpu": moved("cpu"),
        "device": property(places.device),
        "is_cuda": property(lambda self: not places.on_host(self)),
        "is_cpu": property(places.on_host),
        "is_meta": property(_constant(False)),
        "get_device": lambda self: -1 if places.on_host(self) else 0,
        "data_ptr": lambda self: remote.address(self),
        "record_stream": _constant(None),
        "pin_memory": lambda self, *args: self,
        "new_tensor": _new_tensor,
        "tolist": lambda self: remote_.tolist(remote, self),
        "numpy": _escape("numpy()"),
        "__array__": _escape("NumPy"),
        "__dlpack__": _escape("DLPack"),
        "__cuda_array_interface__": property(_escape("__cuda_array_interface__")),
        "apply_": _escape("apply_()"),
        "map_": _escape("map_()"),
        "__repr__": lambda self, **kwargs: (
            f"tensor(..., device='{places.device(self)}', size={tuple(self.shape)}, dtype={self.dtype})"
        ),
        "__deepcopy__": _deepcopy,
        "__reduce_ex__": _escape("pickle"),
    }
    for name, value in pretended.items():
        setattr(tensor, name, value)
    del tensor.__array_priority__
    to = torch.nn.Module.to

    def module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Data types go torch's way; a device it would hand on to every tensor as one without data."""
        asked = places.asked("to", (self, *args), kwargs)
        args = tuple(arg.dtype if isinstance(arg, torch.Tensor) else arg for arg in args if not _names_device(arg))
        kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        if args or kwargs:
            to(self, *args, **kwargs)
        places.put_module(self, asked)
        return self

    torch.nn.Module.to = module_to  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, device=0: module_to(self, device=device or 0)  # type: ignore[method-assign]
    torch.nn.Module.cpu = lambda self: module_to(self, device="cpu")  # type: ignore[method-assign]
    from_numpy = torch.from_numpy
    torch.from_numpy = lambda array: from_numpy(array).clone()  # type: ignore[assignment]
    # Calling one of the candidate's own operators through torch would import the whole of torch._dynamo first.
    CustomOpDef.__call__ = lambda self, *args, **kwargs: self._init_fn(*args, **kwargs)  # type: ignore[method-assign]
    # So would declaring one around a kernel, for the compiler's sake.
    torch.library.triton_op = torch.library.custom_op  # type: ignore[assignment]
    torch.library.wrap_triton = lambda kernel: kernel
    _pretend_cuda_module()
    _pretend_defaults(places)


def _pretend_defaults(places: Places) -> None:
    """Torch's own way is a mode like ours, which would stand in ours' place when the candidate is left."""

    def set_device(device: Any) -> None:
        places.made_on = torch.device("cpu" if device is None else "cuda" if isinstance(device, int) else device)

    def set_type(kind: Any) -> None:
        set_device("cuda" if "cuda" in str(kind) else None)

    torch.set_default_device, torch.set_default_tensor_type = set_device, set_type
    torch.get_default_device = lambda: GPU if places.made_on.type == "cuda" else places.made_on


def _escape(what: str) -> Callable[..., Any]:
    def refuse(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        raise DataEscapeError(f"{what} takes the data out of torch: compute it in the kernel")

    return refuse


def _deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(self) not in memo:
        copied = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
    return memo[id(self)]


def _compiled(model: Any = None, **options: Any) -> Any:
    """torch.compile: what is compiled does what it does uncompiled, by operators that are counted."""
    return model if model is not None else lambda function: function


def _pretend_cuda_module() -> None:
    torch.compile = _compiled
    torch.nn.Module.compile = lambda self, *args, **options: None  # type: ignore[method-assign]
    cuda = torch.cuda
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "synchronize": None, "empty_cache": None,
        "get_device_capability": (9, 0), "get_device_name": _Properties.name, "get_device_properties": _Properties(),
        "set_device": None, "is_initialized": True, "init": None, "manual_seed": None, "manual_seed_all": None,
        "is_bf16_supported": True, "reset_peak_memory_stats": None, "max_memory_allocated": 0, "memory_allocated": 0,
        "current_stream": _Nothing(), "default_stream": _Nothing(), "set_stream": None, "current_blas_handle": 0,
        "is_current_stream_capturing": False, "mem_get_info": (80 * 2**30, 80 * 2**30), "get_arch_list": ["sm_90"],
    }  # fmt: skip
    for name, value in answers.items():
        setattr(cuda, name, _constant(value))
    for name in ("device", "device_of", "Stream", "ExternalStream", "Event", "stream", "StreamContext"):
        setattr(cuda, name, _Nothing)
    for name in ("CUDAGraph", "graph", "make_graphed_callables"):
        setattr(cuda, name, _unsupported("CUDA graphs"))


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
