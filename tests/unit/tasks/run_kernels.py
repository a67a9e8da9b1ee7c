"""Runs kernels in the Triton interpreter and says what became of each; started as a process of its own by the tests.

    python run_kernels.py cases.json answers.json

Reads [{"source": ..., "kernel": ..., "seed": 0}, ...] and writes one [word, CPU seconds] per case. The word is `right`,
`wrong_value`, `wrong_type`, `input_changed`, `out_of_bounds`, or the name of the exception. Memory that is not written
reads as NaN, and an access outside of the launch's tensors is seen.
"""

import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton.runtime import interpreter

from core.tasks.format import build

_ranges: list[tuple[int, int]] = []


class OutOfBounds(Exception):
    """A masked-in address lies in no tensor of the launch."""


def _watch_memory() -> None:
    builder = interpreter.InterpreterBuilder
    start, load, store = (
        interpreter.GridExecutor._init_args_hst,
        builder.create_masked_load,
        builder.create_masked_store,
    )

    def remember(self: Any, args: Any, kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        storages = [tensor.untyped_storage() for tensor in tensors]
        _ranges[:] = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]
        return start(self, args, kwargs)

    def check(pointers: Any, mask: Any) -> None:
        addresses = pointers.data[mask.data.astype(bool)].astype(np.int64)
        inside = np.zeros(addresses.shape, bool)
        for low, high in _ranges:
            inside |= (addresses >= low) & (addresses < high)
        if not inside.all():
            raise OutOfBounds

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    interpreter.GridExecutor._init_args_hst = remember
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store


def _load(text: str, folder: Path, name: str) -> ModuleType:
    # A file, since Triton reads a kernel's own source.
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compare(out: Any, wanted: Any) -> str:
    if isinstance(wanted, tuple | list):
        if not isinstance(out, tuple | list) or len(out) != len(wanted):
            return "wrong_type"
        return next((word for word in map(_compare, out, wanted) if word != "right"), "right")
    if not isinstance(out, torch.Tensor):
        return "wrong_value" if out is None else "wrong_type"
    if out.shape != wanted.shape or out.dtype != wanted.dtype:
        return "wrong_type"
    if not wanted.dtype.is_floating_point:
        return "right" if torch.equal(out, wanted) else "wrong_value"
    share = 1e-4 if wanted.dtype == torch.float32 else 2e-3
    far = (out.double() - wanted.double()).abs()
    bound = share * (wanted.double().abs() + wanted.double().abs().mean())
    return "right" if bool((far <= bound).all()) else "wrong_value"


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, also of a view with gaps."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor)


def _run(case: dict[str, Any], folder: Path, number: int) -> tuple[str, float]:
    problem = build(case["source"], name=f"case {number}", profile="cpu")
    model, inputs = problem.model(case["seed"]), problem.inputs(case["seed"] + 1)
    began = time.process_time()
    with torch.no_grad():
        wanted = model(*inputs)
        given = [_copy(value) if isinstance(value, torch.Tensor) else value for value in inputs]
        try:
            candidate = problem.model(case["seed"] + 2, _load(case["kernel"], folder, f"kernel_{number}").ModelNew)
            candidate.load_state_dict(model.state_dict())
            candidate.train(model.training)
            began = time.process_time()
            out = candidate(*given)
        except Exception as error:
            return "out_of_bounds" if isinstance(error.__cause__, OutOfBounds) else type(error).__name__, 0.0
    took = time.process_time() - began
    changed = any(
        isinstance(value, torch.Tensor) and not torch.equal(value, given[place]) for place, value in enumerate(inputs)
    )
    return "input_changed" if changed else _compare(out, wanted), took


def main(cases: str, answers: str) -> None:
    torch.set_num_threads(1)
    # Fills memory from torch.empty with NaN.
    torch.set_deterministic_debug_mode("warn")
    np.seterr(all="ignore")
    _watch_memory()
    with tempfile.TemporaryDirectory() as folder:
        found = [_run(case, Path(folder), number) for number, case in enumerate(json.loads(Path(cases).read_text()))]
    Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
