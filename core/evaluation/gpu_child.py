"""The GPU child: runs one candidate for real, inside the walls, by orders of the trusted side.

    start device          make the CUDA context          import source        execute the candidate
    construct init        ModelNew on the device         memory name nbytes   map an arena (its descriptor comes along)
    inputs sets           input sets by arena and place  state tensors        copy parameters from the arena
    call set training     forward, device idle           take specs           copy the output's bytes to the arena
    block ...             timed calls                    readings             their events
    flushes n             the flushes of a block alone

It holds no reference, no expected output and no seed. Every function that the harness needs is taken before the
candidate is imported; a candidate that reaches them all the same changes its own readings, which the parent's clock
checks, and its own outputs, which the parent compares. An output must be a plain torch.Tensor on the device.
"""

import contextlib
import gc
import os
import socket
import time
from typing import Any

import torch

from core.evaluation import device_memory, host_memory
from core.evaluation.device_memory import Spec
from core.evaluation.gpu_orders import HonestyOrders
from core.evaluation.gpu_wire import Wire, WireClosed
from core.evaluation.host import NotPlainError, describe_error, import_candidate, odd_type
from core.evaluation.trees import flatten

FLUSH_BYTES = 256 * 2**20
_take, _empty_cache = torch.take, torch.cuda.empty_cache


class WeightsMismatch(ValueError):
    """ModelNew's tensors are not Model's."""


def warm() -> None:
    """In the zygote, before the jail: import what a first launch imports, build Triton's helper. No CUDA call."""
    from triton.backends.nvidia import driver

    if os.environ.get("TRITON_LIBCUDA_PATH"):
        with contextlib.suppress(Exception):  # it is built again in each child then
            driver.CudaUtils()


def run(job_fd: int, result_fd: int, folder: str) -> None:
    """Serve until the trusted side closes its end; the first failure of the candidate ends it."""
    os.close(result_fd)
    wire = Wire(socket.socket(fileno=job_fd))
    child = Child(folder)
    with contextlib.suppress(WireClosed):
        while True:
            order, descriptors = wire.receive()
            command, *arguments = order
            try:
                answer = getattr(child, f"_{command}")(*arguments, *descriptors)
            except BaseException as error:  # the candidate may raise anything, SystemExit too
                described = describe_error(error, child.path)
                wire.send(["failed", {**described, "phase": command, "code": described["code"][:200]}])
                return
            wire.send(["done", answer])


class _HostEvent:
    """What a CUDA event is on the CPU."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: "_HostEvent") -> float:
        return (end.at - self.at) * 1e3


class Child(HonestyOrders):
    """Orders, one method each."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.path = os.path.join(folder, "candidate.py")
        self._module: Any = None
        self._model: Any = None
        self._output: Any = None
        self._arenas: dict[str, Any] = {}
        self._sets: list[tuple[list[Any], dict[str, Any]]] = []
        self._events: list[tuple[Any, Any]] = []

    def _start(self, device: str) -> None:
        self._device = device
        if device == "cpu":
            self._synchronize: Any = lambda: None
            self._new_event: Any = _HostEvent
            self._reset_cache: Any = lambda: None
            self._flush = torch.zeros(1 << 16, dtype=torch.int32)
            return
        torch.set_num_threads(1)
        self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)
        driver = device_memory._driver()
        self._synchronize, self._reset_cache = driver.cuCtxSynchronize, driver.cuCtxResetPersistingL2Cache
        event = torch.cuda.Event
        self._new_event = lambda: event(enable_timing=True)
        self._synchronize()

    def _import(self, source: str) -> None:
        self._module, self.path = import_candidate(source, self._folder)

    def _construct(self, tree: Any) -> dict[str, Any]:
        args, kwargs = self._decode(tree)
        with torch.device(self._device):
            model = self._module.ModelNew(*args, **kwargs)
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"ModelNew is a {type(model).__name__}, not a torch.nn.Module")
        self._model = model.to(self._device)
        names = (*self._model.named_parameters(), *self._model.named_buffers())
        return {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in names}

    def _memory(self, name: str, nbytes: int, descriptor: int) -> None:
        self._arenas[name] = host_memory.attach(self._device, descriptor, nbytes)
        os.close(descriptor)

    def _decode(self, tree: Any) -> Any:
        kind, *body = tree
        if kind == "tensor":
            name, offset, dtype, shape, stride = body
            spec = Spec(offset=offset, dtype=dtype, shape=tuple(shape), stride=tuple(stride))
            return self._arenas[name].tensor(spec)
        if kind == "list":
            return [self._decode(part) for part in body[0]]
        if kind == "tuple":
            return tuple(self._decode(part) for part in body[0])
        if kind == "dict":
            return {key: self._decode(part) for key, part in body[0].items()}
        return body[0]

    def _inputs(self, trees: list[Any]) -> None:
        self._sets = [(self._decode(args), self._decode(kwargs)) for args, kwargs in trees]

    def _state(self, trees: dict[str, Any], required: list[str]) -> None:
        own = dict((*self._model.named_parameters(), *self._model.named_buffers()))
        missing = [name for name in required if name not in own]
        if missing:
            raise WeightsMismatch(f"{missing[0]} is missing")
        with torch.no_grad():
            for name, tree in trees.items():
                if name in own:
                    given = self._decode(tree)
                    if tuple(own[name].shape) != tuple(given.shape):
                        raise WeightsMismatch(
                            f"{name} has shape {tuple(own[name].shape)} instead of {tuple(given.shape)}"
                        )
                    own[name].copy_(given)
        self._synchronize()

    def _forward(self, number: int) -> Any:
        args, kwargs = self._sets[number % len(self._sets)]
        return self._model(*args, **kwargs)

    def _call(self, number: int, training: bool, grad: bool) -> Any:
        """One forward on input set `number`; answers with the output's structure and its tensors' types."""
        self._output = None
        self._model.train(training)
        with torch.set_grad_enabled(grad):
            output = self._forward(number)
        self._idle()
        odd = odd_type(output)
        if odd:
            raise NotPlainError(f"a {odd}, not a plain torch.Tensor")
        structure, self._output = flatten(output)
        return [structure, [[str(t.dtype).removeprefix("torch."), list(t.shape), t.device.type] for t in self._output]]

    def _idle(self) -> None:
        """Wait for the whole device; raises what went wrong on it."""
        self._synchronize()
        if self._device != "cpu":
            torch.cuda.synchronize()

    def _take(self, trees: list[Any]) -> None:
        """Copy the latest output to these places of the arena."""
        for tree, tensor in zip(trees, self._output, strict=True):
            self._decode(tree).copy_(tensor)
        self._output = None
        self._idle()

    def _block(self, calls: int, first: int, keep: int, positions: list[Any], samples: list[Any]) -> None:
        """`calls` forwards, each after a flush, on the sets from `first` on in turn; elements of every output go to
        `samples` [calls, positions], the output of call `keep` is kept. The device is idle at the end."""
        self._output, kept = None, None
        where = [self._decode(tree) for tree in positions]
        into = [self._decode(tree) for tree in samples]
        self._events = [(self._new_event(), self._new_event()) for _ in range(calls)]
        self._reset_cache()
        gc.disable()
        with torch.no_grad():
            for number, (start, end) in enumerate(self._events):
                self._flush.zero_()
                start.record()
                output = self._forward(first + number)
                end.record()
                tensors = [output] if type(output) is torch.Tensor else flatten(output)[1]
                for tensor, places, row in zip(tensors, where, into, strict=True):
                    row[number].copy_(_take(tensor, places))
                if number == keep:
                    kept = tensors
                del output, tensors
        self._idle()
        gc.enable()
        self._output = kept

    def _readings(self) -> list[float]:
        """Milliseconds of the latest block's calls, by events."""
        return [float(start.elapsed_time(end)) for start, end in self._events]

    def _flushes(self, calls: int, positions: list[Any], samples: list[Any]) -> None:
        """A block without forwards; the latest output is sampled as in a block."""
        where = [self._decode(tree) for tree in positions]
        into = [self._decode(tree) for tree in samples]
        self._events = [(self._new_event(), self._new_event()) for _ in range(calls)]
        tensors = self._output
        with torch.no_grad():
            for number, (start, end) in enumerate(self._events):
                self._flush.zero_()
                start.record()
                end.record()
                for tensor, places, row in zip(tensors, where, into, strict=True):
                    row[number].copy_(_take(tensor, places))
        self._idle()

    def _free(self) -> None:
        """Give unused memory back to the device."""
        self._output = None
        if self._device != "cpu":
            _empty_cache()
