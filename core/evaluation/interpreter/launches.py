"""The host's side of a kernel launch: bind the arguments, work out the grid, describe it to the executor.

`install()` is called in the host process, before the candidate is imported. Autotuners and heuristics run here, since
they are Python of the candidate's; the kernel itself is only described (`kernel_describe`) and runs in the executor.
"""

import inspect
import sys
import threading
from types import SimpleNamespace
from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter, jit
from triton.runtime.autotuner import Autotuner
from triton.tools.tensor_descriptor import TensorDescriptor

from core.evaluation import link
from core.evaluation.interpreter.kernel_describe import Describer
from core.evaluation.interpreter.places import Places
from core.evaluation.remote import Remote, plainly

_OPTIONS = """
num_warps num_stages num_ctas maxnreg enable_fp_fusion launch_cooperative_grid launch_pdl debug sanitize_overflow
extern_libs arch instrumentation_mode waves_per_eu matrix_instr_nonkdim kpack allow_flush_denorm ir_override
schedule_hint enable_warp_specialization minRegAutoWS maxRegAutoWS default_dot_input_precision
"""
OPTIONS = frozenset(_OPTIONS.split())
"""Launch options that the compiler knows; the interpreter has no use for them."""


class LaunchError(TypeError):
    """A launch that no GPU would take: wrong arguments, impossible grid."""


def bind(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
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


def grid_sizes(grid: Any, arguments: dict[str, Any]) -> list[int]:
    """Three positive sizes within what a GPU takes."""
    if callable(grid):
        grid = grid(arguments)
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    if not 1 <= len(sizes) <= 3:
        raise LaunchError(f"a grid has 1 to 3 dimensions, got {sizes}")
    plain = [int(size.value if isinstance(size, tl.constexpr) else size) for size in sizes] + [1] * (3 - len(sizes))
    if plain[0] >= 2**31 or max(plain[1:]) > 65535 or min(plain) < 0:
        raise LaunchError(f"grid {tuple(plain)} is beyond (2147483647, 65535, 65535)")
    return plain


class Launcher:
    """Passes launches on; one per host."""

    def __init__(self, remote: Remote, places: Places, path: str) -> None:
        self._remote, self._places, self._path = remote, places, path
        self._describer = Describer()
        self._sent: set[str] = set()
        self._thread = threading.get_ident()

    def key_of(self, kernel: Any) -> str:
        """The kernel's name over there; its source, and of all that it calls, is sent at the first use."""
        key = self._describer.key(kernel)
        if key not in self._sent:
            for name, definition in list(self._describer.definitions.items()):
                if name not in self._sent:
                    self._sent.add(name)
                    self._remote.link.post("kernel", name, definition)
        return key

    def launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> None:
        if threading.get_ident() != self._thread:
            raise LaunchError("a kernel was launched from another thread than forward's")
        options = {name: kwargs[name] for name in kwargs if name in OPTIONS and name not in kernel.arg_names}
        arguments = bind(kernel, args, kwargs)
        for hook in kernel.pre_run_hooks:
            hook(*args, **kwargs)
        sizes = grid_sizes(grid, arguments)
        with plainly():
            self._post(kernel, arguments, options, sizes)

    def _post(self, kernel: Any, arguments: dict[str, Any], options: dict[str, Any], sizes: list[int]) -> None:
        key = self.key_of(kernel)
        encoded = {name: self._encode(name, value) for name, value in arguments.items()}
        plain = {name: value for name, value in options.items() if isinstance(value, (int, bool, str))}
        self._remote.link.post("launch", key, encoded, plain, sizes, self._line())

    def _encode(self, name: str, value: Any) -> Any:
        def special(part: Any) -> list[Any] | None:
            if isinstance(part, tl.constexpr):
                return ["x", link.encode(part.value, special)]
            if isinstance(part, torch.Tensor):
                return self._there(part)
            if isinstance(part, jit.TensorWrapper):
                return ["w", self._there(part.base), str(part.dtype).removeprefix("torch.")]
            if isinstance(part, tl.dtype):
                return ["T", part.name]
            if isinstance(part, torch.dtype):
                return ["y", str(part).removeprefix("torch.")]
            if isinstance(part, (interpreter.InterpretedFunction, jit.JITFunction)):
                return ["k", self.key_of(part)]
            if isinstance(part, TensorDescriptor):
                sizes = [[int(size) for size in sizes] for sizes in (part.shape, part.strides, part.block_shape)]
                return ["D", self._there(part.base), *sizes, str(part.padding)]
            if hasattr(part, "__index__"):
                return ["v", int(part)]
            return None

        try:
            return link.encode(value, special)
        except TypeError as error:
            raise LaunchError(f"argument {name!r}: {error}") from None

    def _there(self, tensor: torch.Tensor) -> list[Any]:
        if not self._places.reachable(tensor):
            raise TypeError("a tensor on the CPU, which no kernel reaches: make it with device=x.device")
        return self._remote.ref(tensor)

    def _line(self) -> int:
        """The candidate's line that launches."""
        frame: Any = sys._getframe(3)
        while frame is not None and frame.f_code.co_filename != self._path:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0


class Warmed:
    """What `kernel.warmup` answers: a compiled kernel, which programs ask for its registers and shared memory to size a
    persistent grid, and launch. Nothing is compiled here: the numbers are those of a usual kernel."""

    n_regs, n_spills, n_max_threads = 32, 0, 1024

    def __init__(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._kernel = kernel
        self._options = {name: kwargs[name] for name in kwargs if name in OPTIONS and name not in kernel.arg_names}
        self._arguments = bind(kernel, args, kwargs)
        self.name = kernel.fn.__name__
        warps, stages = self._options.get("num_warps", 4), self._options.get("num_stages", 3)
        self.metadata = SimpleNamespace(shared=4096, num_warps=warps, num_stages=stages, num_ctas=1, name=self.name)

    def _init_handles(self) -> None: ...

    def __getitem__(self, grid: Any) -> Any:
        """Launches with all arguments in order, or, as some versions want it, without the compile-time ones."""
        annotations = inspect.signature(self._kernel.fn).parameters

        def launch(*args: Any, stream: Any = None) -> None:
            names = self._kernel.arg_names
            if len(args) < len(names):
                names = [name for name in names if "constexpr" not in str(annotations[name].annotation)]
            if len(args) != len(names):
                raise LaunchError(f"{self.name} compiled takes {len(names)} arguments, got {len(args)}")
            given = {**self._arguments, **dict(zip(names, args, strict=True))}
            self._kernel.run(grid=grid, **given, **self._options)

        return launch


class Configurations:
    """Which of an autotuner's configurations run, by their place among those that survive pruning."""

    chosen = 0
    most = 1
    """That any autotuner had."""


def _pick(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for Autotuner.run: nothing can be timed here, so it is said which configuration runs; at first the first
    one."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    survivors = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
    Configurations.most = max(Configurations.most, len(survivors))
    config = survivors[Configurations.chosen % len(survivors)]
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


def install(launcher: Launcher) -> None:
    """From here on `kernel[grid](...)` is passed on."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Warmed | None:
        if warmup:
            return Warmed(self, args, kwargs)
        launcher.launch(self, args, kwargs, grid)
        return None

    interpreter.InterpretedFunction.run = run
    Autotuner.run = _pick
