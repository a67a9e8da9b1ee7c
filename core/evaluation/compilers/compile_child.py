"""The compile stage's child: builds a candidate's kernels for the run's target, without a GPU and without its module.

Runs in a child of the zygote without TRITON_INTERPRET, inside the same walls except that compilers may start their
parts. It makes the kernels from their definitions and compiles each recorded launch with the types, constants and
options of that launch. One job, then frames:

    {"definitions": {key: KernelDefinition}, "launches": [Launch], "target": [...], "launch_cpu_s": s}
    {"phase": n}                                          launch n begins
    {"launch": n, "compiled": {shared_bytes, ...}}
    {"launch": n, "error": {"type", "message", "line"}}
    {"launch": n, "skipped": reason}                      what can't be described is never refused
    {"launch": n, "ended": status}                        the compiler's process ended: minus SIGPROF is its time

The first launch that is refused is the last one compiled. A job with `cuda` in place of `definitions` is CUDA C++
(`cuda_child`). Each launch is compiled in a process of its own, whose processor time the kernel's timer bounds however
deep in the compiler it is.
"""

import ast
import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.driver import driver

from core.evaluation import harness, kernel_load
from core.evaluation import kernel_source as source
from core.evaluation.compilers import cuda_child, ptxas

_REFUSED = 3
_NUMERIC_OPTIONS = """
num_warps num_stages num_ctas maxnreg enable_fp_fusion launch_cooperative_grid launch_pdl sanitize_overflow waves_per_eu
matrix_instr_nonkdim kpack allow_flush_denorm schedule_hint enable_warp_specialization minRegAutoWS maxRegAutoWS
default_dot_input_precision debug instrumentation_mode
"""
_OPTIONS = frozenset(_NUMERIC_OPTIONS.split())
"""Options that are numbers or words; others (files, libraries, assembler flags) a compiler here does not take."""


def warm() -> None:
    """Import and compute now what compiling would later."""
    import triton.compiler.code_generator
    import triton.experimental.gluon.language

    for backend in triton.backends.backends.values():
        backend.compiler  # noqa: B018
    for module in (triton.runtime.cache, triton.compiler.compiler):  # it has moved
        if hasattr(module, "triton_key"):
            module.triton_key()  # reads all of Triton, most of a second: remembered from here on


def run(job_fd: int, result_fd: int, folder: str) -> None:
    """Compile everything; every failure is a frame."""
    channel = harness.Channel(result_fd)
    job, _ = harness.read_job(job_fd)
    if "cuda" in job:
        cuda_child.run(job, channel, folder)
        return
    target = GPUTarget(*job["target"])
    # Parts of Triton's language ask the active driver for the target while they are compiled; there is none here.
    driver.set_active(SimpleNamespace(get_current_target=lambda: target, is_active=lambda: True))
    triton.knobs.nvidia.dump_ptxas_log = True
    definitions = msgspec.convert(job["definitions"], dict[str, source.KernelDefinition])
    launches = msgspec.convert(job["launches"], list[source.Launch])
    try:
        kernels = kernel_load.load_kernels(definitions, folder)
    except source.KernelSourceError as error:
        channel.send({"refused": str(error)})
        return
    for number, launch in enumerate(launches):
        channel.send({"phase": number})
        work = partial(_answer, launch, kernels, definitions, target)
        ended = _apart(work, channel, number, job["launch_cpu_s"])
        if ended:
            if ended != _REFUSED:
                channel.send({"launch": number, "ended": ended})
            return


def _apart(work: Callable[[], dict[str, Any]], channel: harness.Channel, number: int, cpu_s: float) -> int:
    """Do one launch in a process of its own and send its frame; how that process ended, minus the signal.

    The timer's signal can't end this process, the first one of its PID namespace; and a compiler that aborts takes no
    other launch with it.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            answer = work()
            channel.send({"launch": number, **answer})
            status = _REFUSED if "error" in answer else 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _answer(
    launch: source.Launch,
    kernels: dict[str, Any],
    definitions: dict[str, source.KernelDefinition],
    target: GPUTarget,
) -> dict[str, Any]:
    try:
        return _compile(launch, kernels, definitions, target)
    except Exception as error:  # the compiler raises many kinds
        return {"error": _describe(error, launch, kernels, definitions)}


def _compile(
    launch: source.Launch,
    kernels: dict[str, Any],
    definitions: dict[str, source.KernelDefinition],
    target: GPUTarget,
) -> dict[str, Any]:
    kernel = kernels[launch.kernel]
    skipped = _skipped(launch, definitions)
    if skipped:
        return {"skipped": skipped}
    options = {name: value for name, value in launch.options.items() if name in _OPTIONS}
    known = make_backend(target).parse_options(dict(options)).__dict__
    for name in launch.options:
        if name not in known:
            message = f"Keyword argument {name} was specified but unrecognised"
            return {"error": {"type": "KeyError", "message": message, "line": definitions[launch.kernel].line}}
    names = kernel.arg_names
    signature = {name: launch.types.get(name, "constexpr") for name in names}
    constants = {
        (index,): kernel_load.value_of(launch.constants[name], kernels)
        for index, name in enumerate(names)
        if name in launch.constants
    }
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in launch.aligned}
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(
            ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes),
            target=target,
            options=options,
        )
    return {"compiled": _resources(compiled, log.getvalue(), target)}


def _skipped(launch: source.Launch, definitions: dict[str, source.KernelDefinition]) -> str:
    """Why this launch can't be compiled here through no fault of the kernel's, if so."""
    names = {**launch.types, **launch.constants}
    for name, kind in launch.types.items():
        if kind.startswith("?"):
            return f"argument {name} ({kind[1:]}) can't be described to the compiler"
    for name, value in launch.constants.items():
        if isinstance(value, source.Foreign):
            return f"argument {name} ({value.text}) can't be described to the compiler"
    for definition in definitions.values():
        for name, value in definition.globals.items():
            if isinstance(value, source.Foreign) and value.usable:
                return f"global {name} ({value.text}) can't be described to the compiler"
    return "" if names else "no arguments"


def _resources(compiled: Any, log: str, target: GPUTarget) -> dict[str, int]:
    metadata = compiled.metadata
    found = {
        "shared_bytes": int(metadata.shared),
        "threads": int(metadata.num_warps) * target.warp_size,
        "tensor_memory": int(getattr(metadata, "tmem_size", 0) or 0),
    }
    if target.backend == "hip":
        numbers = ptxas.amd_numbers(compiled.asm.get("amdgcn", ""))
        found["registers"] = numbers.get("vgpr_count", 0)
        found["stack_bytes"] = numbers.get("private_segment_fixed_size", 0)
        found["spill_bytes"] = 4 * numbers.get("vgpr_spill_count", 0)
        return found
    found["registers"], found["stack_bytes"] = ptxas.cubin_numbers(compiled.asm.get("cubin", b""))
    found["spill_bytes"] = max((usage.spill_bytes for usage in ptxas.usages(log)), default=0)
    return found


def _describe(
    error: BaseException,
    launch: source.Launch,
    kernels: dict[str, Any],
    definitions: dict[str, source.KernelDefinition],
) -> dict[str, Any]:
    """The innermost message, and the innermost line that is the candidate's own."""
    own = {kernel.src: definitions[key] for key, kernel in kernels.items() if hasattr(kernel, "src")}
    name, message, line = type(error).__name__, str(error), 0
    cause: BaseException | None = error
    while cause is not None:
        node, text = getattr(cause, "node", None), getattr(cause, "src", None)
        if isinstance(node, ast.AST) and text in own:
            line = own[text].line + getattr(node, "lineno", 1) - 1
        message = getattr(cause, "error_message", None) or (message if hasattr(cause, "node") else str(cause))
        name = type(cause).__name__
        cause = cause.__cause__
    if not line:
        line = _line_of_reference(message, definitions) or definitions[launch.kernel].line
    return {"type": name, "message": message[-4000:], "line": line}


def _line_of_reference(message: str, definitions: dict[str, source.KernelDefinition]) -> int:
    """Where the candidate names the ordinary Python function that Triton refuses without saying where."""
    found = re.search(r"Unsupported function referenced: (?:<(?:built-in )?(?:function|method) )?([\w.]+)", message)
    if found is None:
        return 0
    for definition in definitions.values():
        for node in ast.walk(source.parse(definition)):
            if isinstance(node, (ast.Name, ast.Attribute)):
                path = ast.unparse(node)
                alias, _, rest = path.partition(".")
                described = definition.globals.get(alias)
                full = f"{described.text}.{rest}".rstrip(".") if isinstance(described, source.Foreign) else path
                if found[1] in (path, full):
                    return definition.line + node.lineno - 1
    return 0
