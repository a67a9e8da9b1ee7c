"""Compiles the kernels that modules launch for an H100, without a GPU; started as a process of its own by the tests.

    python cross_compile.py cases.json answers.json

Reads [{"source": ..., "kernel": ...}, ...] and writes one list per case: [kernel name, shared memory in bytes] for each
launch of one forward at the `cpu` sizes. Launches are recorded, not run.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from core.tasks.format import build

H100 = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def _compile(function: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int]:
    values = {**dict(zip(function.arg_names, args, strict=False)), **kwargs}
    fixed = {parameter.name for parameter in function.params if parameter.is_constexpr}
    signature = {name: "constexpr" if name in fixed else _type(values[name]) for name in function.arg_names}
    constants = {(function.arg_names.index(name),): values[name] for name in fixed}
    compiled = triton.compile(ASTSource(function, signature, constants), target=H100)
    assert compiled.asm["cubin"]
    return function.fn.__name__, compiled.metadata.shared


def main(cases: str, answers: str) -> None:
    torch.set_num_threads(1)
    found: list[list[tuple[str, int]]] = []
    JITFunction.run = lambda self, *args, grid, warmup, **kwargs: found[-1].append(_compile(self, args, kwargs))
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(json.loads(Path(cases).read_text())):
            found.append([])
            path = Path(folder) / f"kernel_{number}.py"
            path.write_text(case["kernel"])
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            problem = build(case["source"], name=f"case {number}", profile="cpu")
            with torch.no_grad():
                problem.model(0, module.ModelNew)(*problem.inputs(0))
    Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
