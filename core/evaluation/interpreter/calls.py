"""The calls of one candidate: import, construct, call for every draw, one call replayed, calls made again, calls with
other configurations of its autotuners.

Drives the host through the executor and reports to the trusted side what came out: outputs by value, changed inputs and
parameters, what torch did in each call, the ghost run, outputs that changed. It judges nothing.
"""

import random
import time
from typing import Any

import msgspec
import torch

from core.evaluation import harness, link, values
from core.evaluation.aten_costs import tensors_in
from core.evaluation.interpreter.executor import Executor, HostFailed, KernelFailed
from core.evaluation.interpreter.operators import Operators
from core.evaluation.interpreter.storages import BadReference, Storages, named_dtype
from core.evaluation.interpreter.tracing import TRACER

PASSED_OVER = ("AssertionError", "UnsupportedError", "NeedsGpuError", "OutOfTime")
"""What a kernel may end with in a configuration that an autotuner leaves out on a GPU (static asserts), or of which
nothing can be told here in time."""
LEAST_S = 1.0
"""For other configurations: small kernels take milliseconds, and a busy machine may stand still for longer."""


class Calls:
    """One job."""

    def __init__(self, executor: Executor, channel: harness.Channel, job: dict[str, Any], data: memoryview) -> None:
        self._executor, self._channel, self._job, self._data = executor, channel, job, data
        self._names: dict[int, Any] = {}
        """variant -> names of ModelNew's tensors before its latest call, as the host gives them."""
        self._inputs: dict[int, Any] = {}
        """variant -> inputs of its latest call."""
        self._kept: list[tuple[Any, list[bytes]]] = []
        """Outputs of the draws, and their bytes when they returned."""

    def run(self) -> bool:
        """Import, construct, call for every draw, replay; failures become an `error` frame. False when the host went
        without a word."""
        phase, began = "import", time.monotonic()
        try:
            self._phase(phase)
            self._executor.source, self._executor.takes_extensions = self._job["source"], self._job["extensions"]
            self._executor.command("import", self._job["source"], self._job["extensions"])
            for index, draw in enumerate(self._job["draws"]):
                if draw["variant"] not in self._names:
                    phase = "construct"
                    self._phase(phase, index)
                    init = self._refs(draw["init"])
                    self._names[draw["variant"]] = self._executor.command("construct", draw["variant"], init)
                    self._executor.operators.take_counts()
                phase = "forward"
                output = self._draw(index, draw)
                self._kept.append((output, values.encode(output)[1]))
            self._executor.memory.recalls = True
            trace = {"kernels": TRACER.report(), "reused": self._overwritten()}
            trace["changed"] = [index for index in self._job["rechecks"] if not self._same_again(index)]
            self._channel.send({"trace": trace, **self._program()})
            phase = "configuration"
            self._other_configurations(time.monotonic() - began)
        except (HostFailed, KernelFailed) as failure:
            self._send_error({**failure.error, "phase": phase})
        except link.LinkClosed:
            return False
        except BadReference as error:
            self._send_error({"type": "RuntimeError", "message": str(error), "phase": phase})
        except (
            link.Garbled, msgspec.ValidationError, LookupError, AttributeError, TypeError, ValueError, OverflowError,
            RecursionError,
        ) as error:  # fmt: skip
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
        frame = {"error": {**plain, "launched": self._executor.launched > 0}, **self._program()}
        self._channel.send(frame)

    def _program(self) -> dict[str, Any]:
        return {
            "definitions": msgspec.to_builtins(self._executor.kernels.definitions),
            "launches": self._executor.launches,
            "extensions": msgspec.to_builtins(self._executor.extensions),
        }

    def _refs(self, tree: Any) -> Any:
        """A value of the job with its tensors as storages of ours."""
        return self._executor.operators.answer(values.decode(tree, self._data))

    def _place(self, draw: dict[str, Any], same_places: bool) -> tuple[Any, bool]:
        """The inputs in memory, and whether that is the memory of the variant's latest call; parameters are set."""
        variant = draw["variant"]
        state, plain = values.decode(draw["state"], self._data), values.decode(draw["plain"], self._data)
        # Before anything new is there to be seen: a module's own Python may answer.
        self._names[variant] = self._executor.command("tensors", variant, [*state, *plain])
        fresh, old = values.decode(draw["inputs"], self._data), self._inputs.get(variant)
        same = old is not None and same_places and _fits(old, fresh)
        inputs = self._inputs[variant] = _refill(old, fresh) if same else fresh
        self._load_state(self._names[variant], state, draw["required"], plain)
        return inputs, same

    def _call(self, draw: dict[str, Any], refs: Any) -> Any:
        """One forward; `refs` None is the variant's latest inputs, as the same objects. The output as the host says."""
        return self._executor.command("call", draw["variant"], refs, draw["training"], draw["grad"])

    def _draw(self, index: int, draw: dict[str, Any]) -> Any:
        executor = self._executor
        inputs, same = self._place(draw, draw["same_places"])
        tensors = tensors_in(inputs)
        before = [values.raw_bytes(tensor) for tensor in tensors]
        refs = executor.operators.answer(inputs)
        launched, snapshot = executor.launched, None
        executor.empty = ""
        if index == self._job["ghost"]:
            snapshot, executor.log = executor.storages.copy(), []
        self._phase("forward", index)
        encoded = self._call(draw, None if same else refs)
        log, executor.log = executor.log, None
        output = self._output(encoded)
        counts = executor.operators.take_counts()
        tree, blobs = values.encode(output)
        frame = {
            "draw": index,
            "tree": tree,
            "changed_inputs": [
                number for number, tensor in enumerate(tensors) if values.raw_bytes(tensor) != before[number]
            ],
            "changed_state": self._changed_parameters(draw),
            "launches": executor.launched - launched,
            "empty": executor.empty,
            "operators": counts.operators,
            "scalars_read": counts.scalars_read,
        }
        self._channel.send(frame, blobs)
        if snapshot is not None and log is not None:
            self._ghost(snapshot, log, encoded)
        return output

    def _changed_parameters(self, draw: dict[str, Any]) -> list[str]:
        """Parameters that forward wrote to."""
        state = values.decode(draw["state"], self._data)
        held = self._names[draw["variant"]]["parameters"]
        tensors = {name: self._executor.storages.tensor(ref) for name, ref in held.items() if name in state}
        return [
            name
            for name, tensor in tensors.items()
            if tensor.stride() == state[name].stride() and values.raw_bytes(tensor) != values.raw_bytes(state[name])
        ]

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
                self._executor.storages.tensor(own[name]).copy_(tensor)
        for name, tensor in plain.items():
            ref = names["attributes"].get(name)
            if ref is not None and tuple(ref[3]) == tuple(tensor.shape) and named_dtype(ref[2]) == tensor.dtype:
                self._executor.storages.tensor(ref).copy_(tensor)

    def _ghost(self, snapshot: Storages, log: list[list[Any]], encoded: Any) -> None:
        """The call again without its kernels: what they stored is garbage, or zeros where torch stumbles over that."""
        for garbage in (True, False):
            storages = snapshot.copy()
            try:
                tree, blobs = values.encode(_replay(Operators(storages), log, garbage).decode(encoded))
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
                continue  # what a kernel stored decides how torch goes on
            self._channel.send({"ghost": tree}, blobs)
            return

    def _same_again(self, index: int) -> bool:
        """A later call with an earlier call's inputs and parameters: whether it gives that call's output."""
        draw, before = self._job["draws"][index], self._kept[index][1]
        inputs, _ = self._place(draw, same_places=True)
        self._phase("forward", index)
        encoded = self._call(draw, self._executor.operators.answer(inputs))
        again = tensors_in(self._executor.operators.decode(encoded))
        return len(again) == len(before) and all(map(_nearly, again, before))

    def _other_configurations(self, most_s: float) -> None:
        """One call with each configuration of an autotuner that was not chosen, by chance in order and in values; for
        as long as all calls before took, and as many as the job says. The account of the run is closed: a GPU passes
        over configurations that do not fit it, so they are neither compiled nor counted here."""
        count = int(self._executor.command("configurations", 0))
        by_chance = random.SystemRandom()
        numbers = by_chance.sample(range(1, max(1, count)), max(0, min(count - 1, self._job["configurations"])))
        TRACER.until = time.monotonic() + max(most_s, LEAST_S)
        for number in numbers:
            self._executor.command("configurations", number)
            index = by_chance.randrange(len(self._job["draws"]))
            draw = self._job["draws"][index]
            inputs, _ = self._place(draw, same_places=True)
            self._phase("configuration", number)
            try:
                encoded = self._call(draw, self._executor.operators.answer(inputs))
            except KernelFailed as failure:
                if failure.error["type"] in PASSED_OVER or failure.error["memory"]:
                    return  # the host can't go on
                raise
            tree, blobs = values.encode(self._output(encoded))
            self._channel.send({"configuration": number, "of_draw": index, "tree": tree}, blobs)
            if time.monotonic() > TRACER.until:
                return

    def _output(self, encoded: Any) -> Any:
        output = self._executor.operators.decode(encoded)
        size = sum(tensor.nbytes for tensor in tensors_in(output))
        if size > self._job["max_output_bytes"]:
            raise HostFailed({"type": "OutputTooLarge", "message": f"forward returned {size:,} bytes"})
        return output

    def _overwritten(self) -> list[int]:
        """Calls whose output is no longer what it was when they returned."""
        return [
            index
            for index, (output, blobs) in enumerate(self._kept[:-1])
            if b"".join(values.encode(output)[1]) != b"".join(blobs)
        ]


def _nearly(new: torch.Tensor, old: bytes) -> bool:
    """Whether an output has an earlier one's bytes, up to the order of torch's own sums, which may follow alignment."""
    data = values.raw_bytes(new)
    if data == old or len(data) != len(old):
        return data == old
    before = values.from_bytes(old, new.dtype, new.shape, new.stride())
    return values.same(new, before)


def _replay(operators: Operators, log: list[list[Any]], garbage: bool) -> Operators:
    """Run a call's operators again; its kernels only leave garbage, or zeros."""
    storages = operators.storages
    for kind, *rest in log:
        if kind == "op":
            name, args, kwargs, numbers = rest
            out = operators.run(name, args, kwargs, [])
            for tensor, number in zip(tensors_in(out), numbers, strict=True):
                storages.replace(number, tensor)
        elif kind == "grow":
            storages.grow(*rest)
        else:
            for number, itemsize, mask, flipped in rest[0]:
                _poison_elements(storages, number, itemsize, mask, flipped, garbage)
    return operators


def _poison_elements(storages: Storages, number: int, itemsize: int, mask: Any, flipped: Any, garbage: bool) -> None:
    """Garbage where kernels stored: NaN for every floating-point type, -1 for integers, `flipped` for bytes."""
    data = storages.bytes_of(number).numpy()
    whole = data.size // itemsize
    if not garbage:
        data[: whole * itemsize].reshape(whole, itemsize)[mask[:whole]] = 0
    elif flipped is not None:
        data[mask] = flipped
    else:
        data[: whole * itemsize].reshape(whole, itemsize)[mask[:whole]] = 0xFF


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
