"""The host: the process that runs a candidate's Python. It has the source and shapes, no data, and decides nothing.

It answers the executor's commands (import, construct, call) until the link closes. Whatever it says about itself only
chooses words: what was computed, launched and returned is known to the executor.
"""

import contextlib
import importlib.util
import linecache
import os
import sys
import traceback
from typing import Any

import torch
from triton.backends.compiler import GPUTarget

from core.evaluation import remote
from core.evaluation.aten_costs import tensors_in
from core.evaluation.compilers import cuda_capture
from core.evaluation.interpreter import launches, pretend
from core.evaluation.interpreter.places import GPU, Places
from core.evaluation.link import Link, LinkClosed
from core.evaluation.remote import Remote, RemoteTensors


class NotPlainError(TypeError):
    """forward returned what no reference returns."""


def import_candidate(source: str, folder: str) -> tuple[Any, str]:
    """Execute the source as module `candidate`, from a file so that Triton can read its functions; (module, path)."""
    path = os.path.join(folder, "candidate.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return module, path


def describe_error(error: BaseException, path: str) -> dict[str, Any]:
    """What a person needs of an exception: type, message, the candidate's own line."""
    line, code = 0, ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            line = frame.lineno or 0
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno or 0
    if line:
        code = linecache.getline(path, line).strip()
    name = type(error).__name__
    if name == "UnsupportedError" and not isinstance(error, pretend.UnsupportedError):
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
        "memory": isinstance(error, MemoryError),
    }


class Host:
    """Commands, one method each."""

    def __init__(self, link: Link, folder: str) -> None:
        self._link, self._folder = link, folder
        self.path = os.path.join(folder, "candidate.py")
        self._remote = Remote(link)
        self._mode = RemoteTensors(self._remote)
        self._models: dict[int, torch.nn.Module] = {}
        self._inputs: dict[int, Any] = {}
        self._own: dict[int, dict[str, tuple[dict[str, Any], str, torch.Tensor]]] = {}
        """variant -> name -> where a module holds a buffer or a tensor attribute, and which one it was made with."""
        self._module: Any = None
        self._places = Places(self._remote)
        pretend.pretend_gpu(self._remote, self._places)
        pretend.pretend_driver(GPUTarget("cuda", 90, 32))
        launches.install(launches.Launcher(self._remote, self._places, self.path))

    def serve(self) -> None:
        self._link.post("ready")
        while True:
            command, *arguments = self._link.receive()
            with self._mode, pretend.PretendCuda(self._places):
                answer = getattr(self, f"_{command}")(*arguments)
            self._link.post("done", answer)
            self._link.flush()

    def _import(self, source: str, extensions: bool) -> None:
        """Execute the source; with `extensions`, CUDA C++ that it hands to load_inline is recorded."""
        if extensions:
            cuda_capture.install(lambda frame: self._link.post("extension", frame["extension"]))
        self._module, _ = import_candidate(source, self._folder)

    def _construct(self, variant: int, init: Any) -> dict[str, Any]:
        """A ModelNew for one set of sizes; answers with the names of its tensors."""
        args, kwargs = self._remote.decode(init)
        self._places.constructing = True
        model = self._module.ModelNew(*args, **kwargs)
        self._places.constructing = False
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"ModelNew is a {type(model).__name__}, not a torch.nn.Module")
        self._places.put_module(model, GPU)
        self._models[variant] = model
        self._own[variant] = {
            f"{path}.{name}" if path else name: (held, name, value)
            for path, module in model.named_modules()
            for held in (vars(module), module._buffers)
            for name, value in held.items()
            if isinstance(value, torch.Tensor)
        }
        with remote.plainly():
            return self._names(model)

    def _names(self, model: torch.nn.Module) -> dict[str, Any]:
        ref = self._remote.ref
        attributes = {
            f"{path}.{name}" if path else name: ref(value)
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }
        return {
            "parameters": {name: ref(tensor) for name, tensor in model.named_parameters()},
            "buffers": {name: ref(tensor) for name, tensor in model.named_buffers()},
            "attributes": attributes,
        }

    def _tensors(self, variant: int, given: list[str]) -> dict[str, Any]:
        """The names of a module's tensors before a call, for which those named `given` get values: a state that forward
        replaced, as Model may do, is the first one again; parameters may have moved to other memory."""
        for name in given:
            if name in self._own[variant]:
                held, key, tensor = self._own[variant][name]
                held[key] = tensor
        with remote.plainly():
            return self._names(self._models[variant])

    def _call(self, variant: int, inputs: Any, training: bool, grad: bool) -> Any:
        """One forward; `inputs` None repeats the variant's last tensors (whose bytes may have changed)."""
        model = self._models[variant]
        if inputs is not None:
            self._inputs[variant] = self._remote.decode(inputs)
        args, kwargs = self._inputs[variant]
        with remote.without_modes(), torch.no_grad(), remote.plainly():
            for tensor in (*model.parameters(), *model.buffers()):  # they were written to: torch counts that
                tensor.zero_()
        model.train(training)
        with torch.set_grad_enabled(grad):
            output = model(*args, **kwargs)
        with remote.plainly():
            encoded = self._encode_output(output)
        del output, args, kwargs
        self._remote.release()
        return encoded

    def _configurations(self, chosen: int) -> int:
        """Autotuners take this of their configurations from here on; answers with how many the largest had so far."""
        launches.Configurations.chosen = chosen
        return launches.Configurations.most

    def _encode_output(self, output: Any) -> Any:
        odd = odd_type(output)
        if odd:
            raise NotPlainError(f"a {odd}, not a plain torch.Tensor")
        try:
            if any(map(self._places.on_host, tensors_in(output))):
                raise NotPlainError("a tensor on the CPU: return it where the inputs are")
            return self._remote.encode(output)
        except (TypeError, RecursionError) as error:
            raise NotPlainError(str(error)) from None


def odd_type(value: Any, depth: int = 0) -> str:
    """The name of a tensor type that is not plain torch.Tensor or Parameter, anywhere in an output."""
    if isinstance(value, torch.Tensor):
        plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        return "" if plain and "__torch_function__" not in vars(value) else type(value).__name__
    if isinstance(value, (list, tuple)) and depth < 100:
        return next((name for part in value if (name := odd_type(part, depth + 1))), "")
    if isinstance(value, dict) and depth < 100:
        return next((name for part in value.values() if (name := odd_type(part, depth + 1))), "")
    return ""


def run(link: Link, folder: str) -> None:
    """Serve until the link closes; the first failure of the candidate ends it."""
    host = Host(link, folder)
    try:
        host.serve()
    except LinkClosed:
        return
    except BaseException as error:  # the candidate may raise anything, SystemExit too
        with contextlib.suppress(LinkClosed), remote.without_modes():
            link.post("failed", describe_error(error, host.path))
            link.flush()
