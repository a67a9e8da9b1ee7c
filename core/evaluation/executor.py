"""The executor: the confined process that holds a candidate's data and does its work, and runs none of its Python.

    trusted worker --(job: inputs, parameters, source)--> executor --(link)--> host (the candidate's Python, no data)
    trusted worker <--(frames: outputs, counts)---------- executor

It drives the host through import, construction and the calls, runs the operators and kernels that the host asks for,
and reports outputs together with what it saw: launches, operators, changed inputs, overwritten outputs. At the end it
replays one call without the host, with everything that kernels stored poisoned: output that stays right never needed
them. It holds no reference, no expected output, no seed and no verdict; what the host can forge is only a program, and
that program is what gets judged.
"""

import linecache
import os
import traceback
from typing import Any

import msgspec
import torch
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from core.evaluation import harness, interpreter, link, values
from core.evaluation import kernel_source as ks
from core.evaluation.kernel_check import CheckedKernel, Kernels, UnknownNameError
from core.evaluation.kernel_describe import launch_of
from core.evaluation.launch_memory import LaunchMemory
from core.evaluation.launches import OPTIONS
from core.evaluation.operators import Operators
from core.evaluation.storages import BadReference, Storages, named_dtype


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


class _KernelFailed(Exception):
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

    def __init__(self, channel: harness.Channel, host: link.Link, job: dict[str, Any], data: memoryview, path: str):
        self._channel, self._host, self._job, self._data, self._path = channel, host, job, data, path
        self.storages = Storages()
        self.operators = Operators(self.storages)
        self.kernels = Kernels(path)
        self.launches: list[dict[str, Any]] = []
        """Different launches, for the compile stage."""
        self._log: list[list[Any]] | None = None
        """Messages of the call that will be replayed, with what they produced."""
        self.launched = 0
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
                except (BadReference, RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, MemoryError) as error:
                    if not wanted:
                        raise HostFailed({"type": type(error).__name__, "message": str(error)}) from error
                    self._host.post("error", type(error).__name__, str(error)[:2000])
                    return
                if self._log is not None:
                    self._log.append(["op", name, args, kwargs, numbers or _numbers(reply)])
                if wanted:
                    self._host.post("ok", reply)
            case "kernel", [key, definition]:
                self.kernels.add(str(key), msgspec.convert(definition, ks.KernelDefinition))
            case "launch", [str(key), dict(arguments), dict(options), [int(), int(), int()] as grid, int(line)]:
                self._launch(key, arguments, {name: options[name] for name in options if name in OPTIONS}, grid, line)
            case "free", [numbers]:
                self._unused += numbers
            case "grow", [number, nbytes]:
                self.storages.grow(number, nbytes)
                if self._log is not None:
                    self._log.append(["grow", number, nbytes])
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
        except Exception as error:  # a kernel may raise anything
            raise _KernelFailed(self._describe(error, name, line)) from error
        if self._log is not None:
            touched = []
            for region in written:
                number = self.storages.number_at(region.storage)
                mask = region.writer != 0
                # One byte may be a bool or a small integer: only another value than the right one is surely wrong.
                flipped = self.storages.bytes_of(number).numpy()[mask] ^ 1 if region.itemsize == 1 else None
                touched.append((number, region.itemsize, mask, flipped))
            self._log.append(["stores", touched])

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
            return self.operators._special(part)

        return link.decode(value, special)

    def _remember(self, key: str, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]) -> None:
        """Types and constants of a launch that is unlike those before."""
        if len(self.launches) >= ks.MAX_LAUNCHES:
            return
        plain_values = {name: value.value if isinstance(value, _Constant) else value for name, value in arguments.items()}
        aligned = [name for name, value in arguments.items() if _aligned(value)]
        launch = launch_of(key, kernel.definition, plain_values, options, aligned, self._constant)
        plain = msgspec.to_builtins(launch)
        if plain not in self.launches:
            self.launches.append(plain)

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
        line = getattr(error, "line", 0) if isinstance(error, interpreter.IllegalKernelError) else 0
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self._path:
                line = frame.lineno or 0
        code = linecache.getline(self._path, line or launch_line).strip()
        return {
            "type": "AttributeError" if isinstance(error, UnknownNameError) else type(error).__name__,
            "message": str(error)[:2000].encode("utf-8", "replace").decode(),
            "line": line or launch_line,
            "code": code[:200],
            "in_kernel": True,
            "kernel": kernel,
            "memory": isinstance(error, MemoryError),
        }

    # --- the job ---

    def run(self) -> bool:
        """Import, construct, call for every draw, replay; failures become an `error` frame. False when the host went
        without a word."""
        phase = "import"
        try:
            self._phase(phase)
            self.command("import", self._job["source"])
            names: dict[int, Any] = {}
            held: dict[int, Any] = {}
            kept: list[tuple[int, Any, list[bytes]]] = []
            for index, draw in enumerate(self._job["draws"]):
                variant = draw["variant"]
                if variant not in names:
                    phase = "construct"
                    self._phase(phase, index)
                    names[variant] = self.command("construct", variant, self._refs(draw["init"]))
                    self.operators.take_counts()
                phase = "forward"
                held[variant], output = self._draw(index, draw, names[variant], held.get(variant))
                kept.append((index, output, values.encode(output)[1]))
            self.memory.recalls = True
            trace = {"kernels": interpreter.TRACER.report(), "reused": _overwritten(kept)}
            trace["changed"] = [
                index for index in self._job["rechecks"] if not self._same_again(index, names, held, kept)
            ]
            self._channel.send({"trace": trace, **self._program()})
        except HostFailed as failure:
            self._send_error({**failure.error, "phase": phase})
        except _KernelFailed as failure:
            self._send_error({**failure.error, "phase": phase})
        except link.LinkClosed:
            return False
        except BadReference as error:
            self._send_error({"type": "RuntimeError", "message": str(error), "phase": phase})
        except (link.Garbled, msgspec.ValidationError, LookupError, AttributeError, TypeError, ValueError) as error:
            self._channel.send({"forged": f"{type(error).__name__}: {error}"[:300]})
        return True

    def _phase(self, phase: str, draw: int = 0) -> None:
        self._channel.send({"phase": phase, "draw_of_phase": draw})

    def _send_error(self, error: dict[str, Any]) -> None:
        plain = {
            name: error.get(name, default)
            for name, default in (
                ("type", "Exception"), ("message", ""), ("line", 0), ("code", ""), ("phase", ""), ("in_kernel", False),
                ("kernel", ""), ("memory", False),
            )
        }  # fmt: skip
        frame = {"error": {**plain, "launched": self.launched > 0}, **self._program()}
        self._channel.send(frame)

    def _program(self) -> dict[str, Any]:
        return {
            "definitions": msgspec.to_builtins(self.kernels.definitions),
            "launches": self.launches,
        }

    def _refs(self, tree: Any) -> Any:
        """A value of the job with its tensors as storages of ours."""
        return self.operators.answer(values.decode(tree, self._data))

    def _draw(self, index: int, draw: dict[str, Any], names: dict[str, Any], old: Any) -> tuple[Any, Any]:
        fresh = values.decode(draw["inputs"], self._data)
        same = old is not None and draw["same_places"] and _fits(old, fresh)
        inputs = _refill(old, fresh) if same else fresh
        state = values.decode(draw["state"], self._data)
        self._load_state(names, state, draw["required"], values.decode(draw["plain"], self._data))
        tensors = _tensors(inputs)
        before = [values.raw_bytes(tensor) for tensor in tensors]
        launched = self.launched
        replayed = index == self._job["ghost"]
        snapshot = None
        refs = self.operators.answer(inputs)
        if replayed:
            snapshot, self._log = self.storages.copy(), []
        self._phase("forward", index)
        encoded = self.command("call", draw["variant"], None if same else refs, draw["training"], draw["grad"])
        log, self._log = self._log, None
        output = self.operators.decode(encoded)
        parameters = {name: self.storages.tensor(ref) for name, ref in names["parameters"].items() if name in state}
        counts = self.operators.take_counts()
        size = sum(tensor.nbytes for tensor in _tensors(output))
        if size > self._job["max_output_bytes"]:
            raise HostFailed({"type": "OutputTooLarge", "message": f"forward returned {size:,} bytes"})
        tree, blobs = values.encode(output)
        frame = {
            "draw": index,
            "tree": tree,
            "changed_inputs": [
                number for number, tensor in enumerate(tensors) if values.raw_bytes(tensor) != before[number]
            ],
            "changed_state": [
                name
                for name, tensor in parameters.items()
                if tensor.stride() == state[name].stride() and values.raw_bytes(tensor) != values.raw_bytes(state[name])
            ],
            "launches": self.launched - launched,
            "operators": counts.operators,
            "scalars_read": counts.scalars_read,
        }
        self._channel.send(frame, blobs)
        if snapshot is not None and log is not None:
            self._ghost(snapshot, log, encoded)
        return inputs, output

    def _load_state(
        self, names: dict[str, Any], state: dict[str, Any], required: list[str], plain: dict[str, Any]
    ) -> None:
        """Copy parameters, buffers and tensor attributes by name, behind the candidate's back; `required` names must be
        there."""
        own = {**names["parameters"], **names["buffers"]}
        problems = []
        for name, tensor in state.items():
            ref = own.get(name)
            if ref is None:
                if name in required:
                    problems.append(f"{name} {tuple(tensor.shape)} is missing")
            elif tuple(ref[3]) != tuple(tensor.shape):
                problems.append(f"{name} has shape {tuple(ref[3])} instead of {tuple(tensor.shape)}")
            elif named_dtype(ref[2]) != tensor.dtype:
                problems.append(f"{name} has dtype torch.{ref[2]} instead of {tensor.dtype}")
        if problems:
            raise HostFailed({"type": "WeightsMismatch", "message": "; ".join(problems[:4])})
        for name, tensor in state.items():
            if name in own:
                self.storages.tensor(own[name]).copy_(tensor)
        for name, tensor in plain.items():
            ref = names["attributes"].get(name)
            if ref is not None and tuple(ref[3]) == tuple(tensor.shape) and named_dtype(ref[2]) == tensor.dtype:
                self.storages.tensor(ref).copy_(tensor)

    def _ghost(self, snapshot: Storages, log: list[list[Any]], encoded: Any) -> None:
        """The call again without its kernels: what they stored is poison."""
        operators = Operators(snapshot)
        try:
            for kind, *rest in log:
                if kind == "op":
                    name, args, kwargs, numbers = rest
                    out = operators.run(name, args, kwargs, [])
                    for tensor, number in zip(_tensors(out), numbers, strict=True):
                        snapshot.replace(number, tensor)
                elif kind == "grow":
                    snapshot.grow(*rest)
                else:
                    for number, itemsize, mask, flipped in rest[0]:
                        _poison_elements(snapshot, number, itemsize, mask, flipped)
            tree, blobs = values.encode(operators.decode(encoded))
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            return  # what a kernel stored decided how torch went on: the output needed it
        self._channel.send({"ghost": tree}, blobs)

    def _same_again(
        self, index: int, names: dict[int, Any], held: dict[int, Any], kept: list[tuple[int, Any, list[bytes]]]
    ) -> bool:
        """A later call with an earlier call's inputs and parameters: whether it gives that call's output."""
        draw = self._job["draws"][index]
        variant = draw["variant"]
        self._load_state(names[variant], values.decode(draw["state"], self._data), draw["required"], {})
        inputs = held[variant] = _refill(held[variant], values.decode(draw["inputs"], self._data))
        self._phase("forward", index)
        refs = self.operators.answer(inputs)
        encoded = self.command("call", variant, refs, draw["training"], draw["grad"])
        again = _tensors(self.operators.decode(encoded))
        before = kept[index][2]
        if len(again) != len(before):
            return False
        return all(_nearly(new, old) for new, old in zip(again, before, strict=True))


def _overwritten(kept: list[tuple[int, Any, list[bytes]]]) -> list[int]:
    """Calls whose output is no longer what it was when they returned."""
    return [index for index, output, blobs in kept[:-1] if b"".join(values.encode(output)[1]) != b"".join(blobs)]


def _nearly(new: torch.Tensor, old: bytes) -> bool:
    """Whether an output has an earlier one's bytes, up to the order of torch's own sums, which may follow alignment."""
    data = values.raw_bytes(new)
    if data == old or len(data) != len(old):
        return data == old
    before = values.from_bytes(old, new.dtype, new.shape, new.stride())
    if not new.is_floating_point():
        return bool(torch.equal(new, before))
    close = 4 * torch.finfo(new.dtype).eps * float(before.nan_to_num().abs().max())
    return bool(torch.allclose(new, before, rtol=0.0, atol=close, equal_nan=True))


def _numbers(reply: Any) -> list[int]:
    """Storages in an operator's answer, in order."""
    if not isinstance(reply, list):
        return []
    if reply and reply[0] == "t":
        return [reply[1]]
    return [number for part in reply for number in _numbers(part)]


def _poison_elements(storages: Storages, number: int, itemsize: int, mask: Any, flipped: Any) -> None:
    """Garbage where kernels stored: NaN for every floating-point type, -1 for integers, `flipped` for bytes."""
    data = storages.bytes_of(number).numpy()
    whole = data.size // itemsize
    if flipped is not None:
        data[mask] = flipped
    else:
        data[: whole * itemsize].reshape(whole, itemsize)[mask[:whole]] = 0xFF


def _aligned(value: Any) -> bool:
    """Whether a GPU would find the address divisible by 16: allocations are, views may not be."""
    base = value.base if isinstance(value, TensorWrapper) else value
    return isinstance(base, torch.Tensor) and base.storage_offset() * base.element_size() % 16 == 0


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in _tensors(part)]
    return []


def _fits(old: Any, new: Any) -> bool:
    """Whether `new`'s tensors fit into `old`'s memory, so that nothing but their values tells them apart."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return old.dtype == new.dtype and old.shape == new.shape and old.stride() == new.stride()
    if isinstance(old, (list, tuple)):
        return isinstance(new, type(old)) and len(old) == len(new) and all(map(_fits, old, new))
    if isinstance(old, dict):
        return isinstance(new, dict) and old.keys() == new.keys() and all(_fits(old[key], new[key]) for key in old)
    return not isinstance(new, torch.Tensor) and old == new


def _refill(old: Any, new: Any) -> Any:
    if isinstance(old, torch.Tensor):
        values.overwrite(old, values.raw_bytes(new))
        return old
    if isinstance(old, (list, tuple)):
        return type(old)(map(_refill, old, new))
    if isinstance(old, dict):
        return {key: _refill(old[key], new[key]) for key in old}
    return new
