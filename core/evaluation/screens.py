"""The static screen: a cheap filter before anything runs, and features for the log.

It refuses only what could never pass (no class, no kernel, no Python). What merely looks suspicious is noted as a
screen and left to the stages that watch behaviour: text checks alone both miss hacks and refuse honest kernels.
"""

import ast

from core import parsing
from core.evaluation.cuda_source import is_cuda, uses_extensions
from core.evaluation.findings import Finding
from core.evaluation.source_text import foreign_encoding

MAX_SOURCE_BYTES = 256 * 1024
_STATEMENTS: dict[type, str] = {ast.Try: "try_except", ast.Global: "global_state", ast.Nonlocal: "global_state"}
_NAMES = {
    "libdevice": "libdevice", "inline_asm_elementwise": "inline_asm", "extern_elementwise": "extern",
    "bfloat16": "bfloat16",
    "dot_scaled": "dot_scaled", "gluon": "gluon", "float8e5": "float8", "float8e4nv": "float8",
   
    "CUDAGraph": "cuda_graph", "make_graphed_callables": "cuda_graph", "autotune": "autotune",
    "data_ptr": "data_ptr", "gc": "gc", "_getframe": "frames", "inspect": "inspect",
    "ctypes": "ctypes", "subprocess": "subprocess", "socket": "socket", "exec": "exec", "eval": "eval",
    "__import__": "import_call", "monkeypatch": "monkeypatch", "setattr": "setattr", "open": "open", "atexit": "atexit",
    "threading": "threads", "os": "os", "sys": "sys", "_inductor": "inductor", "extern_kernels": "inductor",
    "training": "training", "is_grad_enabled": "is_grad_enabled",
}  # fmt: skip


UNSUPPORTED = frozenset(("cuda_graph",))
"""What the host may say is beyond this tier; a candidate without any of them that claims it is not believed. (What
kernels may use that the interpreter lacks, the executor sees itself.)"""


def screen(source: str, backend: str = "triton") -> tuple[Finding | None, tuple[str, ...]]:
    """What refuses the source outright, if anything, and the features found."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        text = f"the source has {size:,} bytes, more than {MAX_SOURCE_BYTES:,}"
        return Finding(stage="static", category="too_large", headline=text), ()
    if encoding := foreign_encoding(source):
        text = f"the source declares the encoding {encoding[:40]}; a candidate is UTF-8 text"
        detail = "Leave the coding line out."
        return Finding(stage="static", category="syntax_error", headline=text, detail=detail, line=1), ()
    try:
        tree = parsing.parse(source)
    except SyntaxError as error:
        lines = source.splitlines()
        number = error.lineno or 0
        code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return Finding(stage="static", category="syntax_error", headline=error.msg, line=number, code=code), ()
    except (ValueError, RecursionError, MemoryError) as error:
        return Finding(stage="static", category="syntax_error", headline=str(error) or "nested too deeply"), ()
    features: set[str] = set()
    seen: set[str] = set()
    for node in ast.walk(tree):
        kind = type(node)
        if kind is ast.Name:
            seen.add(node.id)  # type: ignore[attr-defined]
        elif kind is ast.Attribute:
            seen.add(node.attr)  # type: ignore[attr-defined]
        elif kind is ast.ClassDef:
            seen.add(f"class {node.name}")  # type: ignore[attr-defined]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            seen.update(part for alias in node.names for part in (alias.asname or "", *alias.name.split(".")))
            seen.update((node.module or "").split(".") if isinstance(node, ast.ImportFrom) else [])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "jit" in node.value:
            seen.add("jit")
        elif kind in _STATEMENTS:
            features.add(_STATEMENTS[kind])
    features.update(_NAMES[name] for name in seen if name in _NAMES)
    found = tuple(sorted(features))
    if not {"class ModelNew", "ModelNew"} & seen:
        classes = [name.removeprefix("class ") for name in seen if name.startswith("class ")]
        text = "there is no class ModelNew"
        others = f"found: {', '.join(sorted(classes))}. " if classes else ""
        detail = f"{others}Define `class ModelNew(torch.nn.Module)` with the arguments of Model."
        return Finding(stage="static", category="no_model_new", headline=text, detail=detail), found
    if not (uses_extensions(source) if backend == "cuda" else "jit" in seen):
        detail = "Write the computation as a function decorated with @triton.jit and launch it in forward."
        if backend == "cuda":
            other = "Triton, but " if {"triton", "jit"} <= seen else ""
            text = f"{other}no CUDA kernel: neither load_inline nor load is called"
            detail = "Hand the CUDA source to torch.utils.cpp_extension.load_inline and call its function in forward."
            return Finding(stage="static", category="no_kernel", headline=text, detail=detail), found
        text = "CUDA C++, but no @triton.jit kernel" if is_cuda(source) else "no @triton.jit kernel"
        return Finding(stage="static", category="no_kernel", headline=text, detail=detail), found
    return None, found
