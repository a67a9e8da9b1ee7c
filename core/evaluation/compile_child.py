"""The compile stage's child: builds a candidate's kernels for the run's target, without a GPU.

Runs in a child of a zygote that has no TRITON_INTERPRET, inside the same walls except that the compiler may start its
assembler. It imports the candidate again, finds each kernel that was launched in the interpreter, and compiles it
with the types, constants and options of that launch. Frames back, one a kernel:

    {"kernel": name, "shared": bytes, "registers": n, "stack": bytes, "threads": n}
    {"kernel": name, "error": {"type", "message", "line", "code"}}
    {"kernel": name, "skipped": reason}
"""

import ast
import linecache
import os
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from core.evaluation import harness
from core.evaluation.pretend import PretendCuda, pretend_cuda, pretend_driver


def warm() -> None:
    """Import now what compiling imports later."""
    import triton.compiler.code_generator
    import triton.experimental.gluon.language

    for backend in triton.backends.backends.values():
        backend.compiler  # noqa: B018


def run(job_fd: int, result_fd: int, folder: str) -> None:
    """Import the candidate and compile; every failure is a frame."""
    channel = harness.Channel(result_fd)
    job, _ = harness.read_job(job_fd)
    target = GPUTarget(*job["target"])
    pretend_cuda()
    pretend_driver(target)
    channel.send({"phase": "import"})
    with PretendCuda():
        module, path = harness.import_candidate(job["source"], folder)
    kernels = _kernels(module)
    for name, launch in job["signatures"].items():
        channel.send({"phase": name})
        kernel = kernels.get(name)
        if kernel is None:
            channel.send({"kernel": name, "skipped": "not a module-level kernel"})
            continue
        try:
            channel.send({"kernel": name, **_compile(kernel, launch, target)})
        except Exception as error:  # the compiler raises many kinds
            channel.send({"kernel": name, "error": _describe(error, kernel, path)})


def _kernels(module: Any) -> dict[str, JITFunction]:
    """Kernels of the module by function name, decorators such as autotune taken off."""
    found = {}
    for value in vars(module).values():
        while value is not None and not isinstance(value, JITFunction) and hasattr(value, "fn"):
            value = value.fn
        if isinstance(value, JITFunction):
            found[value.fn.__name__] = value
    return found


def _compile(kernel: JITFunction, launch: dict[str, Any], target: GPUTarget) -> dict[str, Any]:
    types, constants = launch["types"], launch["constants"]
    odd = [name for name, kind in types.items() if kind.startswith("?")] + launch["skipped"]
    if odd:
        return {"skipped": f"argument {odd[0]} can't be described to the compiler"}
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    constexprs = {(index,): constants.get(name) for index, name in enumerate(names) if name not in types}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in launch["aligned"]}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    compiled = triton.compile(source, target=target, options=launch["options"])
    registers, stack = _cubin_numbers(compiled.asm.get("cubin", b""))
    return {
        "shared": int(compiled.metadata.shared),
        "registers": registers,
        "stack": stack,
        "threads": int(compiled.metadata.num_warps) * target.warp_size,
    }


def _cubin_numbers(binary: bytes) -> tuple[int, int]:
    """Registers a thread and stack bytes a thread (where spills go), from the .nv.info entries of a cubin; 0 if
    absent."""

    def largest(code: int) -> int:
        entries = re.finditer(re.escape(bytes((4, code, 8, 0))) + b"(.{4})(.{4})", binary, re.DOTALL)
        return max((int.from_bytes(entry[2], "little") for entry in entries), default=0)

    return min(largest(0x2F), 255), largest(0x11) % 2**20


def _describe(error: BaseException, kernel: JITFunction, path: str) -> dict[str, Any]:
    """The compiler's message without its source listing, and the candidate's line."""
    line = 0
    message = str(error)
    cause: BaseException | None = error
    while cause is not None:
        node = getattr(cause, "node", None)
        if isinstance(node, ast.AST) and hasattr(node, "lineno"):
            line = node.lineno + kernel.starting_line_number - 1
        inner = getattr(cause, "error_message", None)
        message = inner or (str(cause) if not hasattr(cause, "node") else message)
        name = type(cause).__name__
        cause = cause.__cause__
    return {
        "type": name,
        "message": message[-2000:],
        "line": line,
        "code": linecache.getline(path, line).strip()[:200] if os.path.exists(path) else "",
    }
