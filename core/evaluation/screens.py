"""The static screen: a cheap filter before anything runs, and features for the log.

It refuses only what could never pass (no class, no kernel, no Python). What merely looks suspicious is noted as a screen
and left to the stages that watch behaviour: text checks alone both miss hacks and refuse honest kernels.
"""

import ast

from core.evaluation.findings import Finding

MAX_SOURCE_BYTES = 256 * 1024
_FEATURES = {
    "try_except": (ast.Try,),
    "global_state": (ast.Global, ast.Nonlocal),
}
_NAMES = {
    "libdevice": "libdevice", "inline_asm_elementwise": "inline_asm", "extern_elementwise": "extern", "bfloat16": "bfloat16",
    "autotune": "autotune", "data_ptr": "data_ptr", "gc": "gc", "_getframe": "frames", "inspect": "inspect",
    "ctypes": "ctypes", "subprocess": "subprocess", "socket": "socket", "exec": "exec", "eval": "eval",
    "__import__": "import_call", "monkeypatch": "monkeypatch", "setattr": "setattr", "open": "open", "atexit": "atexit",
    "threading": "threads", "os": "os", "sys": "sys", "_inductor": "inductor", "extern_kernels": "inductor",
    "training": "training", "is_grad_enabled": "is_grad_enabled",
}  # fmt: skip


def screen(source: str) -> tuple[Finding | None, tuple[str, ...]]:
    """What refuses the source outright, if anything, and the features found."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        text = f"the source has {size:,} bytes, more than {MAX_SOURCE_BYTES:,}"
        return Finding(stage="static", category="too_large", headline=text), ()
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        lines = source.splitlines()
        number = error.lineno or 0
        code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return Finding(stage="static", category="syntax_error", headline=error.msg, line=number, code=code), ()
    except (ValueError, RecursionError, MemoryError) as error:
        return Finding(stage="static", category="syntax_error", headline=str(error) or "nested too deeply"), ()
    features: set[str] = set()
    classes: set[str] = set()
    has_jit = False
    for node in ast.walk(tree):
        for feature, kinds in _FEATURES.items():
            if isinstance(node, kinds):
                features.add(feature)
        names: list[str] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [part for alias in node.names for part in (alias.asname or "", *alias.name.split("."))]
            names += (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
        elif isinstance(node, ast.ClassDef):
            classes.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "jit" in node.value:
            has_jit = True
        has_jit = has_jit or "jit" in names
        features.update(_NAMES[name] for name in names if name in _NAMES)
    found = tuple(sorted(features))
    named = any(isinstance(node, ast.Name) and node.id == "ModelNew" for node in ast.walk(tree))
    if "ModelNew" not in classes and not named:
        text = "there is no class ModelNew"
        others = f"found: {', '.join(sorted(classes))}. " if classes else ""
        detail = f"{others}Define `class ModelNew(torch.nn.Module)` with the arguments of Model."
        return Finding(stage="static", category="no_model_new", headline=text, detail=detail), found
    if not has_jit:
        detail = "Write the computation as a function decorated with @triton.jit and launch it in forward."
        return Finding(stage="static", category="no_kernel", headline="no @triton.jit kernel", detail=detail), found
    return None, found
