"""Executor and host without walls, in a process of their own: both patch torch and Triton for good.

`Bench` is that process; its functions are sent to it by name. It imports torch and Triton once, as the zygote does, and
forks a host per candidate, as a judge's child does.
"""

import os
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from core.evaluation import host, link, remote
from core.evaluation import kernel_source as ks
from core.evaluation.interpreter import engine as interpreter
from core.evaluation.interpreter import executor
from core.evaluation.interpreter.kernel_check import Kernels
from core.evaluation.interpreter.launch_memory import LaunchMemory
from core.evaluation.interpreter.tracing import TRACER
from core.evaluation.trees import flatten


class Bench:
    """Calls functions of this module over there; what they raise is raised here."""

    def __init__(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            patch.setenv("OMP_NUM_THREADS", "1")
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_prepare)
            self._pool.submit(int).result()

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.submit(function, *args).result()

    def stop(self) -> None:
        self._pool.shutdown()


def _prepare() -> None:
    torch.set_num_threads(1)
    interpreter.install()
    remote.warm()


class Pair:
    """An executor, and the host that it drives."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._folder = tempfile.TemporaryDirectory()
        self._child = os.fork()
        if self._child == 0:
            try:
                ours.close()
                host.run(link.Link(theirs), self._folder.name)
            finally:
                os._exit(0)
        theirs.close()
        end = link.Link(ours)
        assert end.receive() == ["ready"]
        path = os.path.join(self._folder.name, "candidate.py")
        self.executor = executor.Executor(end, path)
        self._socket = ours

    def start(self, source: str) -> None:
        """Import the source and make its ModelNew."""
        self.executor.command("import", source, False)
        self.executor.command("construct", 0, self.executor.operators.answer([[], {}]))

    def call(self, *inputs: Any, grad: bool = False) -> Any:
        """One forward on inputs that are held here."""
        refs = self.executor.operators.answer([list(inputs), {}])
        return self.executor.operators.decode(self.executor.command("call", 0, refs, True, grad))

    def close(self) -> None:
        del self.executor
        self._socket.shutdown(socket.SHUT_RDWR)
        os.waitpid(self._child, 0)
        self._folder.cleanup()


def forward(source: str, *inputs: Any) -> Any:
    """What ModelNew's forward gives, its tensors as nested lists; an exception of the candidate's as its text."""
    pair = Pair()
    try:
        pair.start(source)
        return [tensor.tolist() for tensor in flatten(pair.call(*map(torch.tensor, inputs)))[1]]
    except (executor.HostFailed, executor.KernelFailed) as failure:
        return f"{failure.error['type']}: {failure.error['message']}"
    finally:
        pair.close()


def difference(source: str, inputs: list[torch.Tensor]) -> str:
    """How ModelNew's outputs through host and executor differ from those in plain torch; '' when they don't."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    with torch.no_grad():
        wanted = flatten(namespace["ModelNew"]()(*[x.clone() for x in inputs]))
    pair = Pair()
    try:
        # Programs make tensors without a device, as plain torch does on the CPU here; outputs must be on the GPU.
        pair.start(f"import torch\ntorch.set_default_device('cuda')\n{source}")
        got = flatten(pair.call(*[x.clone() for x in inputs]))
    except (executor.HostFailed, executor.KernelFailed) as failure:
        return f"{failure.error}"
    finally:
        pair.close()
    if got[0] != wanted[0]:
        return f"structure {got[0]} instead of {wanted[0]}"
    for number, (new, old) in enumerate(zip(got[1], wanted[1], strict=True)):
        if (new.dtype, new.shape, new.stride()) != (old.dtype, old.shape, old.stride()):
            return (
                f"output {number}: {new.dtype} {tuple(new.shape)} {new.stride()} instead of "
                f"{old.dtype} {tuple(old.shape)} {old.stride()}"
            )
        if not torch.allclose(new, old, rtol=0, atol=0, equal_nan=True):
            return f"output {number}: {new} instead of {old}"
    return ""


def kernels_of(source: str, constants: dict[str, ks.Global] | None = None) -> Kernels:
    """One function `kernel`, as if a host had described it; parameters in capitals are constexprs."""
    names = source.partition("(")[2].partition(")")[0].replace(" ", "").split(",")
    definition = ks.KernelDefinition(
        name="kernel",
        source=source.strip(),
        line=1,
        globals={"tl": ks.Module(path="triton.language"), "triton": ks.Module(path="triton"), **(constants or {})},
        annotations={name: "constexpr" for name in names if name.isupper()},
    )
    kernels = Kernels("candidate.py")
    kernels.add("kernel", definition)
    return kernels


def launch(source: str, grid: int, arguments: dict[str, Any]) -> tuple[str, dict[str, list[Any]]]:
    """One launch: the error's type and text, and the tensors (given as lists) as they are afterwards."""
    kernel = kernels_of(source).get("kernel")
    values = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in arguments.items()}
    error = ""
    try:
        interpreter.execute("kernel", kernel, values, [grid, 1, 1])
    except Exception as caught:
        cause = caught.__cause__ if type(caught).__name__ == "InterpreterError" and caught.__cause__ else caught
        error = f"{type(cause).__name__}: {cause}"
    return error, {name: value.tolist() for name, value in values.items() if isinstance(value, torch.Tensor)}


def remembered(source: str, grid: int, calls: list[dict[str, Any]]) -> list[tuple[bool, list[Any], list[Any]]]:
    """The same launch with several sets of tensors, recalled where it can be: (recalled, its tensors, those of the
    interpreter alone)."""
    kernel = kernels_of(source).get("kernel")
    memory = LaunchMemory()
    memory.recalls = True
    found = []
    for arguments in calls:
        results = []
        runs = len(TRACER.kernels) and TRACER.kernels["kernel"].launches
        for run in (memory.execute, None):
            tensors = {name: torch.tensor(value) for name, value in arguments.items()}
            encoded = {
                name: ["t", 2 * number, "float32", list(x.shape), list(x.stride()), 0]
                for number, (name, x) in enumerate(tensors.items())
            }
            if run is None:
                interpreter.execute("alone", kernel, tensors, [grid, 1, 1])
            else:
                run("kernel", kernel, encoded, tensors, [grid, 1, 1])
            results.append([x.tolist() for x in tensors.values()])
        recalled = TRACER.kernels["kernel"].launches == runs
        found.append((recalled, *results))
    return found
