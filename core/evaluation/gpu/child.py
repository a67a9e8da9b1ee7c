"""The GPU child: runs one candidate for real, inside the walls, by orders of the trusted side.

    start device flags    make the CUDA context          import source        execute the candidate
    construct init        ModelNew on the device         memory name nbytes   map an arena (its descriptor comes along)
    inputs sets           input sets by arena and place  state tensors        copy parameters from the arena
    call set training     forward, device idle           take specs           copy the output's bytes to the arena
    part specs range      copy one range of the output   buffers specs        copy buffers to the arena
    free, drop            give memory back (drop: the held output's too)      warm    an untimed call
    block ...             timed calls                    readings             their events
    flushes n             the flushes of a block alone   variant n            another module and its inputs
    precision             the process's switches         held                 bytes of device memory in use

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

from core.evaluation.aten_costs import tensors_in
from core.evaluation.gpu import device_memory, host_memory
from core.evaluation.gpu import places as gpu_places
from core.evaluation.gpu import precision as gpu_precision
from core.evaluation.gpu.orders import HonestyOrders
from core.evaluation.gpu.wire import Wire, WireClosed
from core.evaluation.host import NotPlainError, describe_error, import_candidate, odd_type
from core.evaluation.trees import flatten, mapped

FLUSH_BYTES = 256 * 2**20
_take, _empty_cache, _read_precision = torch.take, torch.cuda.empty_cache, gpu_precision.read


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


def _sample(tensors: list[torch.Tensor], where: list[torch.Tensor], into: list[torch.Tensor], number: int) -> None:
    """A call's elements to its row. On its own, so that no variable holds an output into the next call: of a task of
    gigabytes that would be one output more."""
    for tensor, places, row in zip(tensors, where, into, strict=True):
        if tensor.numel():
            row[number].copy_(_take(tensor, places))


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
        self._variants: dict[int, tuple[Any, Any, Any]] = {}
        self._variant_now = 0
        self._mutated: list[int] = []
        """Input tensors that the task itself changes: every timed call finds them as they were."""
        self._puts_back = False
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._holds = False
        """Whether the latest output is to be taken part by part."""
        self._events: list[tuple[Any, Any]] = []

    def _start(self, device: str, flags: dict[str, str] | None = None) -> None:
        self._device = device
        gpu_precision.reset()
        if flags is not None:
            gpu_precision.apply(flags)
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
        # Of its own: what a module keeps must not lie in memory that is shared.
        args, kwargs = mapped(self._decode(tree), torch.clone)
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
        return gpu_places.decode(tree, self._arenas, self._device)

    def _inputs(self, trees: list[Any], mutated: list[int] | None = None, puts_back: bool = False) -> None:
        """Input sets; those that the task itself changes are put back after a call where the trusted side does not."""
        self._sets = [(self._decode(args), self._decode(kwargs)) for args, kwargs in trees]
        self._mutated, self._puts_back = mutated or [], puts_back

    def _variant(self, number: int) -> None:
        """Put the present module and inputs away and bring another one's back; none where the number is new."""
        self._variants[self._variant_now] = (self._model, self._sets, self._mutated)
        self._variant_now = number
        self._model, self._sets, self._mutated = self._variants.get(number, (None, [], []))
        self._output, self._holds = None, False

    def _state(self, trees: dict[str, Any], required: list[str]) -> None:
        own = dict((*self._model.named_parameters(), *self._model.named_buffers()))
        attributes = {
            f"={path}.{name}" if path else f"={name}": value
            for path, module in self._model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }
        given = {name: self._decode(tree) for name, tree in trees.items()}
        problems = [f"{name} {tuple(given[name].shape)} is missing" for name in required if name not in own]
        for name, tensor in given.items():
            mine = own.get(name)
            if mine is not None and tuple(mine.shape) != tuple(tensor.shape):
                problems.append(f"{name} has shape {tuple(mine.shape)} instead of {tuple(tensor.shape)}")
            elif mine is not None and mine.dtype != tensor.dtype:
                problems.append(f"{name} has dtype {mine.dtype} instead of {tensor.dtype}")
        if problems:
            raise WeightsMismatch("; ".join(problems[:4]))
        with torch.no_grad():
            for name, tensor in given.items():
                mine = own.get(name, attributes.get(name))
                if mine is not None and mine.shape == tensor.shape and mine.dtype == tensor.dtype:
                    mine.copy_(tensor)
        self._synchronize()

    def _remember(self) -> None:
        """Copies of what the task changes, as it is now, in all sets."""
        given = [tensors_in([args, kwargs]) for args, kwargs in self._sets]
        self._kept = [(tensors[index], tensors[index].clone()) for tensors in given for index in self._mutated]

    def _put_back(self) -> None:
        for tensor, before in self._kept:
            tensor.copy_(before)

    def _forward(self, number: int) -> Any:
        args, kwargs = self._sets[number % len(self._sets)]
        return self._model(*args, **kwargs)

    def _call(self, number: int, training: bool, grad: bool) -> Any:
        """One forward on input set `number`; answers with the output's structure and its tensors' types."""
        self._output, self._holds = None, False
        self._remember()
        self._model.train(training)
        with torch.set_grad_enabled(grad):
            output = self._forward(number)
        self._idle()
        if self._puts_back:
            self._put_back()
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
        """Copy the latest output to these places of the arena; with no places, hold it for `part`."""
        if not trees:
            self._holds = True
            return
        for tree, tensor in zip(trees, self._output, strict=True):
            self._decode(tree).copy_(tensor)
        self._output = None
        self._idle()

    def _part(self, trees: list[Any], dim: int, start: int, stop: int) -> None:
        """Copy one range of the held output."""
        for tree, tensor in zip(trees, self._output, strict=True):
            self._decode(tree).copy_(tensor.narrow(dim, start, stop - start))
        self._idle()

    def _buffers(self, trees: dict[str, Any]) -> None:
        """Copy buffers; one that is absent or of another kind is not written."""
        own = dict(self._model.named_buffers())
        for name, tree in trees.items():
            place = self._decode(tree)
            if name in own and own[name].shape == place.shape and own[name].dtype == place.dtype:
                place.copy_(own[name])
        self._idle()

    def _warm(self) -> None:
        """An untimed call, so that the next one finds its memory."""
        self._output, self._holds = None, False
        self._remember()
        with torch.no_grad():
            self._forward(0)
        self._put_back()
        self._idle()

    def _precision(self) -> dict[str, str]:
        return _read_precision()

    def _held(self) -> list[int]:
        """Most bytes that torch had allocated and reserved in this process; what it says of itself."""
        if self._device == "cpu":
            return [0, 0]
        return [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]

    def _block(self, calls: int, first: int, keep: int, positions: list[Any], samples: list[Any]) -> None:
        """`calls` forwards, each after a flush, on the sets from `first` on in turn; elements of every output go to
        `samples` [calls, positions], the output of call `keep` is kept. The device is idle at the end."""
        self._output, kept, self._holds = None, None, False
        self._remember()
        where = [self._decode(tree) for tree in positions]
        into = [self._decode(tree) for tree in samples]
        self._events = [(self._new_event(), self._new_event()) for _ in range(calls)]
        gc.disable()
        with torch.no_grad():
            for number, (start, end) in enumerate(self._events):
                self._put_back()
                self._reset_cache()  # lines that were pinned would outlive the flush
                self._flush.zero_()
                start.record()
                output = self._forward(first + number)
                end.record()
                tensors = [output] if type(output) is torch.Tensor else flatten(output)[1]
                _sample(tensors, where, into, number)
                if number == keep:
                    kept = tensors
                del output, tensors
            self._put_back()
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
        self._remember()
        with torch.no_grad():
            for number, (start, end) in enumerate(self._events):
                self._put_back()
                self._reset_cache()
                self._flush.zero_()
                start.record()
                end.record()
                _sample(tensors, where, into, number)
            self._put_back()
        self._idle()

    def _free(self) -> None:
        """Give unused memory back to the device; an output that is held for `part` stays."""
        if not self._holds:
            self._output = None
        self._kept = []
        if self._device != "cpu":
            _empty_cache()

    def _drop(self) -> None:
        """As `free`, the held output too."""
        self._holds = False
        self._free()
