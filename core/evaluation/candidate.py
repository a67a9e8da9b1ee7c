"""The candidate's side of the judge: reads the job, runs ModelNew, sends raw outputs. Runs inside the sandbox.

Nothing here decides anything. The process holds the candidate's source, init inputs, parameters, buffers and input
tensors, all by value; it has no reference, no expected output, no seed, no verdict to write. What it sends is data that
the trusted side judges, and a candidate that forges frames can only forge what it could have computed.
"""

import contextlib
import gc
import linecache
import os
import traceback
from typing import Any

import torch
from triton.backends.compiler import GPUTarget

from core.evaluation import harness, interpreter, values
from core.evaluation.pretend import PretendCuda, pretend_cuda, pretend_driver
from core.evaluation.recorder import Recorder


def describe(error: BaseException, path: str) -> dict[str, Any]:
    """What a person needs of an exception: type, message, the candidate's own line."""
    while isinstance(error, interpreter.interpreter.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    line, code = 0, ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            line = frame.lineno or 0
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno or 0
    if line:
        code = linecache.getline(path, line).strip()
    name = type(error).__name__
    if name == "UnsupportedError" and not isinstance(error, interpreter.UnsupportedError):
        name = "Exception"  # a candidate's own class of that name is no word of ours
    try:
        message = str(error)[:2000].encode("utf-8", "replace").decode()
    except Exception:
        message = "(its message can't be shown)"
    return {
        "type": name,
        "message": message,
        "line": line,
        "code": code[:200],
        "in_kernel": interpreter.TRACER.in_kernel,
        "launched": bool(interpreter.TRACER.kernels),
        "kernel": interpreter.TRACER.current.name if interpreter.TRACER.current else "",
        "signatures": interpreter.TRACER.signatures,
    }


class WeightsMismatch(Exception):
    """ModelNew does not have Model's parameters under the same names and shapes."""


def _own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def load_state(
    model: torch.nn.Module, state: dict[str, torch.Tensor], required: list[str], plain: dict[str, Any]
) -> None:
    """Copy parameters, buffers and plain tensor attributes by name; `required` names must be there."""
    own = _own_tensors(model)
    problems = []
    for name, tensor in state.items():
        mine = own.get(name)
        if mine is None:
            if name in required:
                problems.append(f"{name} {tuple(tensor.shape)} is missing")
        elif mine.shape != tensor.shape:
            problems.append(f"{name} has shape {tuple(mine.shape)} instead of {tuple(tensor.shape)}")
        elif mine.dtype != tensor.dtype:
            problems.append(f"{name} has dtype {mine.dtype} instead of {tensor.dtype}")
    if problems:
        raise WeightsMismatch("; ".join(problems[:4]))
    for name, tensor in state.items():
        if name in own:
            _fill(own[name], tensor)
    for name, tensor in plain.items():
        owner: Any = model
        *path, last = name.split(".")
        for step in path:
            owner = getattr(owner, step, None)
        mine = getattr(owner, last, None)
        if isinstance(mine, torch.Tensor) and mine.shape == tensor.shape and mine.dtype == tensor.dtype:
            _fill(mine, tensor)


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Behind torch's back, so that what was derived from the old values is seen to be stale."""
    if target.stride() == source.stride() and target.is_contiguous():
        values.overwrite(target.detach(), values.raw_bytes(source))
    else:
        target.detach().copy_(source)


def _same_places(old: Any, new: Any) -> bool:
    """Whether `new`'s tensors fit into `old`'s memory, so that a pointer can't tell them apart."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return old.dtype == new.dtype and old.shape == new.shape and old.stride() == new.stride()
    if isinstance(old, (list, tuple)):
        return isinstance(new, type(old)) and len(old) == len(new) and all(map(_same_places, old, new))
    return not isinstance(new, torch.Tensor)


def _refill(old: Any, new: Any) -> Any:
    if isinstance(old, torch.Tensor):
        values.overwrite(old, values.raw_bytes(new))
        return old
    if isinstance(old, (list, tuple)):
        return type(old)(_refill(a, b) for a, b in zip(old, new, strict=True))
    return new


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _odd_type(value: Any) -> str:
    """Name of the first output type that is not a plain tensor or container."""
    if isinstance(value, torch.Tensor):
        return "" if type(value) in (torch.Tensor, torch.nn.Parameter) and not vars(value) else type(value).__name__
    if isinstance(value, (list, tuple)):
        return next((name for part in value if (name := _odd_type(part))), "")
    return ""


def _pristine() -> bool:
    """Whether the checked operations are still ours."""
    builder = interpreter.interpreter.InterpreterBuilder
    operations = (
        builder.create_masked_load,
        builder.create_masked_store,
        interpreter.interpreter.InterpretedFunction.run,
    )
    return all(getattr(item, "__module__", "").startswith("core.evaluation.interpreter") for item in operations)


def run(job_fd: int, result_fd: int, folder: str) -> None:
    """Do the whole job; every failure of the candidate becomes an `error` frame."""
    channel = harness.Channel(result_fd)
    job, data = harness.read_job(job_fd)
    torch.default_generator.manual_seed(int.from_bytes(os.urandom(7), "little"))
    pretend_cuda()
    pretend_driver(GPUTarget("cuda", 90, 32))
    path = os.path.join(folder, "candidate.py")
    phase = "import"
    try:
        with PretendCuda():
            channel.send({"phase": phase})
            module, path = harness.import_candidate(job["source"], folder)
            phase = "construct"
            channel.send({"phase": phase})
            models: dict[int, torch.nn.Module] = {}
            for draw in job["draws"]:
                if draw["variant"] not in models:
                    init_args, init_kwargs = values.decode(draw["init"], data)
                    model = module.ModelNew(*init_args, **init_kwargs)
                    if not isinstance(model, torch.nn.Module):
                        raise TypeError(f"ModelNew is a {type(model).__name__}, not a torch.nn.Module")
                    models[draw["variant"]] = model
            phase = "forward"
            _draws(channel, job, data, models)
    except MemoryError as error:
        channel.send({"error": {**describe(error, path), "phase": phase, "memory": True}})
    except BaseException as error:  # the candidate may raise anything, SystemExit too
        channel.send({"error": {**describe(error, path), "phase": phase}})


def _draws(channel: harness.Channel, job: dict[str, Any], data: memoryview, models: dict[int, torch.nn.Module]) -> None:
    kept: list[tuple[Any, list[bytes]]] = []
    held: dict[int, Any] = {}
    state: dict[str, torch.Tensor] = {}
    operators: list[dict[str, list[int]]] = []
    for index, draw in enumerate(job["draws"]):
        fresh = values.decode(draw["inputs"], data)
        model, old = models[draw["variant"]], held.get(draw["variant"])
        inputs = _refill(old, fresh) if draw["same_places"] and _same_places(old, fresh) else fresh
        held[draw["variant"]] = inputs
        state = values.decode(draw["state"], data)
        load_state(model, state, draw["required"], values.decode(draw["plain"], data))
        before = [values.raw_bytes(tensor) for tensor in _tensors(inputs)]
        launches = sum(kernel.launches for kernel in interpreter.TRACER.kernels.values())
        channel.send({"phase": "forward", "draw": index})
        output, recorder = _call(model, inputs, draw)
        odd = _odd_type(output)
        if odd:
            channel.send({"draw": index, "odd_type": odd})
            return
        tree, blobs = values.encode(output)
        changed = [
            number for number, tensor in enumerate(_tensors(inputs)) if values.raw_bytes(tensor) != before[number]
        ]
        own = _own_tensors(model)
        moved = (
            [
                name
                for name, parameter in model.named_parameters()
                if name in state and values.raw_bytes(parameter.detach()) != values.raw_bytes(state[name])
            ]
            if all(own[name].stride() == state[name].stride() for name in state if name in own)
            else []
        )
        operators.append(recorder.operators)
        kept.append((output, blobs))
        channel.send(
            {
                "draw": index,
                "tree": tree,
                "changed_inputs": changed,
                "changed_state": moved,
                "launches": sum(kernel.launches for kernel in interpreter.TRACER.kernels.values()) - launches,
            },
            blobs,
        )
    reused = [
        index
        for index, (output, blobs) in enumerate(kept[:-1])
        if b"".join(values.encode(output)[1]) != b"".join(blobs)
    ]
    trace = {
        "kernels": interpreter.TRACER.report(),
        "signatures": interpreter.TRACER.signatures,
        "operators": operators,
        "reused": reused,
        "pristine": _pristine(),
    }
    channel.send({"trace": trace})
    if job["ghost"]:
        channel.send({"phase": "ghost"})
        interpreter.TRACER.ghost = True
        with contextlib.suppress(Exception):
            output, _ = _call(model, inputs, job["draws"][-1])
            tree, blobs = values.encode(output)
            channel.send({"ghost": tree}, blobs)
    gc.disable()


def _call(model: torch.nn.Module, inputs: Any, draw: dict[str, Any]) -> tuple[Any, Recorder]:
    args, kwargs = inputs
    model.train(draw["training"])
    recorder = Recorder()
    with torch.set_grad_enabled(draw["grad"]), recorder:
        output = model(*args, **kwargs)
    return output, recorder
