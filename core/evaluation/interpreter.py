"""Triton's interpreter, made to check and count: runs inside the candidate's process.

Pointers are not addresses here. Every storage that a launch is handed gets a region of 2^40 bytes of its own and kernels
compute with positions in regions, so that a pointer that runs off one tensor can't land in another by luck: each access
is checked against the size of the storage that its pointer came from, then translated. The same place counts bytes,
memory sectors, operations and launches, which the speed model reads.

`install()` is called once, before any candidate exists; it patches Triton's language for good (the stock interpreter
patches and restores it around every launch, which costs more than a small kernel).
"""

import inspect
import os
import types
from collections.abc import Callable
from typing import Any

import numpy as np

assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before triton is imported"

import triton
import triton.language as tl
from triton.runtime import interpreter, jit
from triton.runtime.autotuner import Autotuner
from triton.tools.tensor_descriptor import TensorDescriptor

_REGION_BITS = 40
_MIDDLE = 1 << (_REGION_BITS - 1)
SECTOR_BYTES = 32
"""What a GPU moves at least per access."""
OPTIONS = frozenset(
    "num_warps num_stages num_ctas maxnreg enable_fp_fusion launch_cooperative_grid launch_pdl debug sanitize_overflow "
    "extern_libs arch instrumentation_mode waves_per_eu matrix_instr_nonkdim kpack allow_flush_denorm ir_override "
    "schedule_hint enable_warp_specialization minRegAutoWS maxRegAutoWS default_dot_input_precision".split()  # noqa: SIM905
)
"""Launch options that the compiler knows; the interpreter has no use for them."""


class OutOfBoundsError(IndexError):
    """A kernel's access outside the tensor that the pointer belongs to."""


class LaunchError(TypeError):
    """A launch that no GPU would take: wrong arguments, impossible grid."""


class UnsupportedError(NotImplementedError):
    """Right or wrong can't be told here."""


class Region:
    """One storage as kernels see it."""

    def __init__(self, index: int, name: str, address: int, nbytes: int, itemsize: int, shape: tuple[int, ...]) -> None:
        self.name, self.address, self.nbytes, self.itemsize, self.shape = name, address, nbytes, itemsize, shape
        self.base = (index << _REGION_BITS) + _MIDDLE + (address & 63)
        self.read = np.zeros(nbytes // SECTOR_BYTES + 1, dtype=bool)
        self.written = np.zeros(nbytes // SECTOR_BYTES + 1, dtype=bool)


class Kernel:
    """What is known of one kernel function over all of its launches."""

    def __init__(self, name: str, line: int) -> None:
        self.name, self.line = name, line
        self.launches = 0
        self.programs = 0
        self.sector_bytes = 0
        """Different memory that launches touched, in whole sectors: what must come from DRAM at least."""
        self.traffic_bytes = 0
        """What all accesses together asked for: caches serve the part above `sector_bytes`."""
        self.flops = 0
        self.dot_flops = 0


class Tracer:
    """State of the running candidate; one per process."""

    def __init__(self) -> None:
        self.kernels: dict[Callable[..., Any], Kernel] = {}
        self.signatures: dict[str, dict[str, Any]] = {}
        self.ghost = False
        """Kernels do nothing: whose output stays the same never needed them."""
        self.regions: dict[int, Region] = {}
        self.by_storage: dict[int, Region] = {}
        self.current: Kernel | None = None
        self.in_kernel = False

    def region_of(self, tensor: Any, name: str) -> Region:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        region = self.by_storage.get(key)
        if region is None:
            index = len(self.regions) + 1
            region = Region(index, name, key, storage.nbytes(), tensor.element_size(), tuple(tensor.shape))
            self.regions[index] = region
            self.by_storage[key] = region
        return region

    def real_pointers(
        self, pointers: np.ndarray, mask: np.ndarray, itemsize: int, store: bool, load: bool
    ) -> np.ndarray:
        """Checked machine addresses for the active lanes; counts the access."""
        active = pointers[mask] if mask.shape == pointers.shape else pointers[np.broadcast_to(mask, pointers.shape)]
        if active.size == 0:
            return pointers
        region = self.regions.get(int(active.flat[0]) >> _REGION_BITS)
        if region is None:
            raise OutOfBoundsError(f"{'tl.store' if store else 'tl.load'} through a pointer that belongs to no tensor")
        offsets = active.view(np.int64) - region.base
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high + itemsize > region.nbytes:
            indices = active >> np.uint64(_REGION_BITS)
            if (indices != indices.flat[0]).any():
                return self._over_regions(pointers, mask, indices, itemsize, store, load)
            self._refuse(region, low if low < 0 else high, itemsize, store)
        sectors = offsets >> 5
        if load:
            region.read[sectors] = True
        if store:
            region.written[sectors] = True
        kernel = self.current
        if kernel is not None:
            asked = min(active.size * itemsize, high - low + itemsize)
            kernel.traffic_bytes += asked * (2 if load and store else 1)
        return pointers + np.uint64((region.address - region.base) % 2**64)

    def _over_regions(
        self, pointers: np.ndarray, mask: np.ndarray, indices: np.ndarray, itemsize: int, store: bool, load: bool
    ) -> np.ndarray:
        """One access through pointers into several tensors."""
        real = pointers.copy()
        lanes = np.broadcast_to(mask, pointers.shape)
        owner = pointers >> np.uint64(_REGION_BITS)
        for index in np.unique(indices):
            chosen = lanes & (owner == index)
            real[chosen] = self.real_pointers(pointers, chosen, itemsize, store, load)[chosen]
        return real

    def _refuse(self, region: Region, offset: int, itemsize: int, store: bool) -> None:
        verb = "tl.store writes" if store else "tl.load reads"
        size = region.nbytes // region.itemsize
        program = interpreter.interpreter_builder.grid_idx
        raise OutOfBoundsError(
            f"{verb} {region.name}[{offset // region.itemsize}] but {region.name} has {size} elements "
            f"(program {program[0] if program[1:] == (0, 0) else tuple(program)})"
        )

    def begin(self, function: Any) -> Kernel:
        kernel = self.kernels.get(function)
        if kernel is None:
            kernel = self.kernels[function] = Kernel(function.__name__, function.__code__.co_firstlineno)
        self.regions.clear()
        self.by_storage.clear()
        self.current = kernel
        return kernel

    def end(self, kernel: Kernel) -> None:
        for region in self.regions.values():
            kernel.sector_bytes += SECTOR_BYTES * int(region.read.sum() + region.written.sum())
        self.current = None

    def report(self) -> list[dict[str, Any]]:
        names = "name line launches programs sector_bytes traffic_bytes flops dot_flops".split()  # noqa: SIM905
        return [{name: getattr(kernel, name) for name in names} for kernel in self.kernels.values()]


TRACER = Tracer()


def _to_language(value: Any, name: str) -> Any:
    """A launch argument as the language's value: tensors become pointers into their region."""
    if hasattr(value, "data_ptr"):
        base = value.base if isinstance(value, jit.TensorWrapper) else value
        if base.is_meta or base.device.type != "cpu":
            raise LaunchError(f"argument {name!r} is a tensor on {base.device}")
        region = TRACER.region_of(base, name)
        kind = tl.str_to_ty(jit.mangle_type(value), None)
        position = region.base + base.data_ptr() - region.address
        return tl.tensor(interpreter.TensorHandle(np.array([position], dtype=np.uint64), kind), kind)
    if isinstance(value, tuple):
        parts = [_to_language(part, f"{name}[{index}]") for index, part in enumerate(value)]
        return interpreter._tuple_create(value, parts)
    if isinstance(value, TensorDescriptor):
        strides = [interpreter._implicit_cvt(step) for step in value.strides]
        strides[-1] = tl.constexpr(1)
        return interpreter.interpreter_semantic.make_tensor_descriptor(
            base=_to_language(value.base, name),
            shape=[interpreter._implicit_cvt(size) for size in value.shape],
            strides=strides,
            block_shape=[tl.constexpr(size) for size in value.block_shape],
            padding_option=value.padding,
        )
    return interpreter._implicit_cvt(value)


def _bind(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, launch options left out."""
    names = kernel.arg_names
    unknown = [name for name in kwargs if name not in names and name not in OPTIONS]
    if unknown:
        raise LaunchError(f"{kernel.fn.__name__} has no argument {unknown[0]!r}; it takes {', '.join(names)}")
    try:
        bound = inspect.signature(kernel.fn).bind(*args, **{key: val for key, val in kwargs.items() if key in names})
    except TypeError as error:
        raise LaunchError(f"{kernel.fn.__name__}: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _grid(grid: Any, arguments: dict[str, Any]) -> tuple[int, int, int]:
    if callable(grid):
        grid = grid(arguments)
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    if not 1 <= len(sizes) <= 3:
        raise LaunchError(f"a grid has 1 to 3 dimensions, got {sizes}")
    sizes = tuple(int(size.value if isinstance(size, tl.constexpr) else size) for size in sizes) + (1,) * (
        3 - len(sizes)
    )
    if sizes[0] >= 2**31 or max(sizes[1:]) > 65535 or min(sizes) < 0:
        raise LaunchError(f"grid {sizes} is beyond (2147483647, 65535, 65535)")
    return sizes  # type: ignore[return-value]


def _constexprs(kernel: Any) -> set[str]:
    annotations = {name: jit._normalize_ty(kind) for name, kind in kernel.fn.__annotations__.items()}
    return {name for name in kernel.arg_names if annotations.get(name) == "constexpr"}


def _run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """Stands for InterpretedFunction.run: one launch, checked and counted."""
    if warmup:
        return
    options = {name: kwargs[name] for name in kwargs if name in OPTIONS and name not in self.arg_names}
    arguments = _bind(self, args, kwargs)
    for hook in self.pre_run_hooks:
        hook(*args, **kwargs)
    sizes = _grid(grid, arguments)
    constexprs = _constexprs(self)
    kernel = TRACER.begin(self.fn)
    kernel.launches += 1
    _remember_signature(self, arguments, constexprs, options)
    if TRACER.ghost:
        TRACER.current = None
        return
    with _no_torch_modes():
        values = {
            name: (value.value if isinstance(value, tl.constexpr) else value)
            if name in constexprs
            else _to_language(value, name)
            for name, value in arguments.items()
        }
    function = self.rewrite()
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*sizes)
    TRACER.in_kernel = True
    for x in range(sizes[0]):
        for y in range(sizes[1]):
            for z in range(sizes[2]):
                builder.grid_idx = (x, y, z)
                function(**values)
    TRACER.in_kernel = False
    kernel.programs += sizes[0] * sizes[1] * sizes[2]
    TRACER.end(kernel)


def _no_torch_modes() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _remember_signature(kernel: Any, arguments: dict[str, Any], constexprs: set[str], options: dict[str, Any]) -> None:
    """The first launch's types and constants of each kernel: what the compile stage builds."""
    key = kernel.fn.__name__
    if key in TRACER.signatures or len(TRACER.signatures) >= 16:
        return
    kinds, constants, aligned = {}, {}, []
    with _no_torch_modes():
        for name, value in arguments.items():
            if isinstance(value, tl.constexpr):
                value = value.value
            if name in constexprs or value is None:
                constants[name] = value
            elif isinstance(value, (int, float)) or hasattr(value, "data_ptr"):
                kinds[name] = jit.mangle_type(value)
                if isinstance(value, bool):
                    continue
                if hasattr(value, "data_ptr") or (isinstance(value, int) and value % 16 == 0):
                    aligned.append(name)
            else:
                kinds[name] = f"?{type(value).__name__}"
    plain = {name: value for name, value in constants.items() if isinstance(value, (int, float, str, bool, type(None)))}
    TRACER.signatures[key] = {
        "line": kernel.fn.__code__.co_firstlineno,
        "types": kinds,
        "constants": plain,
        "skipped": sorted(set(constants) - set(plain)),
        "aligned": aligned,
        "options": {name: value for name, value in options.items() if isinstance(value, (int, bool))},
    }


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for InterpretedFunction.__call__: a device function called from a kernel."""
    return self.rewrite()(*args, **kwargs)


def _pick_first(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for Autotuner.run: nothing can be timed here, so the first configuration that survives pruning runs."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    config = (self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs)[0]
    clash = kwargs.keys() & config.kwargs.keys()
    if clash:
        raise LaunchError(f"autotuned argument {sorted(clash)[0]!r} is passed at the launch too")
    self.best_config = config
    named = {**self.nargs, **kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook(named)
    self.pre_hook(named, reset_only=True)
    result = self.fn.run(*args, **kwargs, **config.all_kwargs())
    self.nargs = None
    return result


def install() -> None:
    """Patch Triton for this process; runs no torch operation."""
    from core.evaluation.interpreter_ops import patch_builder

    def anchor() -> None: ...

    visible = types.FunctionType(anchor.__code__, {"tl": tl, "core": tl.core, "math": tl.math}, "anchor")
    interpreter._patch_lang(visible)
    patch_builder()
    # As on a GPU without debug=True: integers wrap. The check costs a third of a small kernel's time.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.InterpretedFunction.run = _run
    interpreter.InterpretedFunction.__call__ = _call
    Autotuner.run = _pick_first
    for module in (tl.standard, tl.math, tl.random if hasattr(tl, "random") else tl):
        for value in list(vars(module).values()):
            if isinstance(value, interpreter.InterpretedFunction):
                value.rewrite()
    np.seterr(all="ignore")
    triton.runtime.jit.mangle_type(1)  # imports the rest of the language now instead of in every child
