"""The executor: the confined process that holds a candidate's data and does its work, and runs none of its Python.

    trusted worker --(job: inputs, parameters, source)--> executor --(link)--> host (the candidate's Python, no data)
    trusted worker <--(frames: outputs, counts)---------- executor

It runs the operators and kernels that the host asks for, while `calls` drives the host through import, construction and
the calls. It holds no reference, no expected output, no seed and no verdict; what the host can forge is only a program,
and that program is what gets judged.
"""

import secrets
import traceback
from typing import Any

import msgspec
import torch
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from core.evaluation import kernel_source as ks
from core.evaluation import link
from core.evaluation.cuda_source import Extension
from core.evaluation.interpreter.kernel_check import CheckedKernel, Kernels, UnknownNameError
from core.evaluation.interpreter.kernel_describe import launch_of
from core.evaluation.interpreter.launch_memory import LaunchMemory
from core.evaluation.interpreter.launches import OPTIONS
from core.evaluation.interpreter.operators import Operators
from core.evaluation.interpreter.storages import BadReference, Storages, named_dtype
from core.evaluation.interpreter.tracing import IllegalKernelError

MAX_DIFFERENT = 4096
"""Different launches that are told apart."""


class HostFailed(Exception):
    """The candidate raised; `error` says what, in its own words."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        # Words only: that it was a kernel, and where the work was, is not for the host to say.
        self.error = {
            "type": str(error.get("type", "Exception"))[:200],
            "message": str(error.get("message", ""))[:2000],
            "line": error["line"] if type(error.get("line")) is int and 0 <= error["line"] < 2**31 else 0,
            "code": str(error.get("code", ""))[:200],
            "memory": error.get("memory") is True,
        }


class KernelFailed(Exception):
    """A kernel raised; `error` is the frame."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error["message"]))
        self.error = error


class _Constant:
    """A constexpr argument."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Executor:
    """One candidate."""

    def __init__(self, host: link.Link, path: str) -> None:
        self._host, self._path = host, path
        self.source = ""
        """The candidate's text, for messages."""
        self.storages = Storages()
        self.operators = Operators(self.storages)
        self.kernels = Kernels(path)
        self.extensions: list[Extension] = []
        """CUDA C++ that the candidate wants built."""
        self.takes_extensions = False
        """Whether the task asks for CUDA C++; else a candidate would only say that nothing can be told here."""
        self.launches: list[dict[str, Any]] = []
        """Different launches, for the compile stage."""
        self._different: set[bytes] = set()
        """All that were seen."""
        self.log: list[list[Any]] | None = None
        """Messages of the call that will be replayed, with what they produced."""
        self.launched = 0
        self.empty = ""
        """The latest launch whose grid had no programs, in words."""
        self.memory = LaunchMemory()
        self._unused: list[int] = []
        """Storages that the host has no tensor of any more: the output of a call is among them, so they go later."""

    # --- serving the host ---

    def command(self, *message: Any) -> Any:
        """Give the host a command and serve it until it answers; raises HostFailed or LinkClosed."""
        self.storages.free(self._unused)
        self._unused = []
        self._host.post(*message)
        while True:
            kind, *rest = self._host.receive()
            if kind == "done":
                return rest[0]
            if kind == "failed":
                raise HostFailed(rest[0])
            self._serve(kind, rest)

    def _serve(self, kind: str, rest: list[Any]) -> None:
        match kind, rest:
            case "op", [name, args, kwargs, wanted, numbers]:
                try:
                    out = self.operators.run(name, args, kwargs, numbers)
                    reply = self.operators.answer(out) if wanted else None
                except (
                    BadReference,
                    RuntimeError,
                    ValueError,
                    TypeError,
                    IndexError,
                    NotImplementedError,
                    MemoryError,
                ) as error:
                    if not wanted:
                        raise HostFailed({"type": type(error).__name__, "message": str(error)}) from error
                    self._host.post("error", type(error).__name__, str(error)[:2000])
                    return
                if self.log is not None:
                    self.log.append(["op", name, args, kwargs, numbers or _numbers(reply)])
                if wanted:
                    self._host.post("ok", reply)
            case "kernel", [key, definition]:
                self.kernels.add(str(key), msgspec.convert(definition, ks.KernelDefinition))
            case "launch", [str(key), dict(arguments), dict(options), [int(), int(), int()] as grid, int(line)]:
                self._launch(key, arguments, {name: options[name] for name in options if name in OPTIONS}, grid, line)
            case "free", [numbers]:
                self._unused += numbers
            case "extension", [extension] if self.takes_extensions:
                self.extensions.append(msgspec.convert(extension, Extension))
            case "grow", [number, nbytes]:
                self.storages.grow(number, nbytes)
                if self.log is not None:
                    self.log.append(["grow", number, nbytes])
            case _:
                raise link.Garbled(f"message {kind!r}")

    # --- launches ---

    def _launch(self, key: str, encoded: dict[str, Any], options: dict[str, Any], grid: list[int], line: int) -> None:
        self.launched += 1
        name = key
        try:
            kernel = self.kernels.get(key)
            name = kernel.definition.name
            arguments = {argument: self._argument(value) for argument, value in encoded.items()}
            self._remember(key, kernel, arguments, options)
            plain = {
                argument: (value.value if isinstance(value, _Constant) else value)
                for argument, value in arguments.items()
            }
            written = self.memory.execute(key, kernel, encoded, plain, grid)
            if 0 in grid:
                self.empty = f"{name} at line {line} with grid ({', '.join(map(str, grid))})"
        except Exception as error:  # a kernel may raise anything
            raise KernelFailed(self._describe(error, name, line)) from error
        if self.log is not None:
            touched = []
            for region in written:
                number = self.storages.number_at(region.storage)
                mask = region.writer != 0
                # One byte may be a bool or a small integer: only another value than the right one is surely wrong.
                flipped = self.storages.bytes_of(number).numpy()[mask] ^ 1 if region.itemsize == 1 else None
                touched.append((number, region.itemsize, mask, flipped))
            self.log.append(["stores", touched])

    def _argument(self, value: Any) -> Any:
        def special(part: list[Any]) -> Any:
            match part:
                case ["x", inner]:
                    return _Constant(link.decode(inner, special))
                case ["w", ref, name]:
                    return TensorWrapper(self.storages.tensor(ref), named_dtype(name))
                case ["T", name]:
                    return tl.dtype(name)
                case ["k", key]:
                    return self.kernels.get(key)
                case ["v", number]:
                    return int(number)
                case ["D", ref, shape, strides, block, padding]:
                    return TensorDescriptor(self.storages.tensor(ref), shape, strides, block, padding)
            return self.operators.special(part)

        return link.decode(value, special)

    def _remember(self, key: str, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]) -> None:
        """Types and constants of a launch that is unlike those before."""
        if len(self._different) >= MAX_DIFFERENT:
            return
        plain_values = {
            name: value.value if isinstance(value, _Constant) else value for name, value in arguments.items()
        }
        aligned = [name for name, value in arguments.items() if _aligned(value)]
        launch = launch_of(key, kernel.definition, plain_values, options, aligned, self._constant)
        plain = msgspec.to_builtins(launch)
        seen = msgspec.msgpack.encode(plain)
        if seen in self._different:
            return
        self._different.add(seen)
        # Where there are more than are compiled, which of them is by chance: no launch hides behind those before it.
        place = len(self.launches) if len(self.launches) < ks.MAX_LAUNCHES else secrets.randbelow(len(self._different))
        if place < ks.MAX_LAUNCHES:
            self.launches[place : place + 1] = [plain]

    def _constant(self, value: Any) -> ks.Global:
        """A compile-time argument as plain data."""
        if isinstance(value, CheckedKernel):
            return ks.Kernel(key=next(key for key, kernel in self.kernels.built() if kernel is value))
        if isinstance(value, tl.dtype):
            return ks.Dtype(name=value.name)
        if isinstance(value, (tuple, list)):
            return ks.Items(values=tuple(self._constant(part) for part in value))
        if value is None or isinstance(value, (int, float, str)):
            return ks.Constant(value=value)
        return ks.Foreign(kind="object", text=type(value).__name__)

    def _describe(self, error: BaseException, kernel: str, launch_line: int) -> dict[str, Any]:
        while isinstance(error, stock.InterpreterError) and error.__cause__ is not None:
            error = error.__cause__
        line = getattr(error, "line", 0) if isinstance(error, IllegalKernelError) else 0
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self._path:
                line = frame.lineno or 0
        # Not from the file: that is in the host's folder, which may hold anything by now.
        code = "".join(self.source.splitlines()[max(0, (line or launch_line) - 1) :][:1]).strip()
        return {
            "type": "AttributeError" if isinstance(error, UnknownNameError) else type(error).__name__,
            "message": str(error)[:2000].encode("utf-8", "replace").decode(),
            "line": line or launch_line,
            "code": code[:200],
            "in_kernel": True,
            "kernel": kernel,
            "memory": isinstance(error, MemoryError),
        }


def _numbers(reply: Any) -> list[int]:
    """Storages in an operator's answer, in order."""
    if not isinstance(reply, list):
        return []
    if reply and reply[0] == "t":
        return [reply[1]]
    return [number for part in reply for number in _numbers(part)]


def _aligned(value: Any) -> bool:
    """Whether a GPU would find the address divisible by 16: allocations are, views may not be."""
    base = value.base if isinstance(value, TensorWrapper) else value
    return isinstance(base, torch.Tensor) and base.storage_offset() * base.element_size() % 16 == 0
