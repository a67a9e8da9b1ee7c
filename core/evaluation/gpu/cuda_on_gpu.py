"""CUDA C++ that is built where it runs: `load_inline` and `load` in a GPU child, inside its walls.

The module `torch.utils.cpp_extension` is replaced by one that records (cuda_capture) and builds what was recorded: nvcc
and g++ side by side on small headers of torch's own first, on all of them where those do not do (as cuda_child). Only
flags that change what the compiler makes are passed on, and nothing is linked but torch and the CUDA runtime: a library
that does the work has to be opened at run time, and its kernels then show in the profile.

What does not compile raises ExtensionError, whose message ends with the candidate's line; `finding` reads it on the
trusted side.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import torch

from core.evaluation import cuda_source
from core.evaluation.compilers import compiler_text, cuda_capture, cuda_child, cuda_stage
from core.evaluation.cuda_source import Extension
from core.evaluation.findings import Finding
from core.evaluation.waits import BUILD_S

_LINE = re.compile(r"\[line (\d+)\]$")
_PYBIND = "#include <torch/csrc/utils/pybind.h>\n"
_KEPT_CHARS = 64 * 1024


class ExtensionError(RuntimeError):
    """An extension that can't be built; the message is the compiler's."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What builds, found by the trusted side (cuda_tools)."""

    nvcc: str
    cxx: str
    arch: str
    """sm_90"""
    includes: list[str]
    headers: list[str]
    """Folders of every header that could be included."""
    libraries: list[str]
    """Folders of torch's libraries, then files to link."""
    wall_s: float = BUILD_S
    """For all compilers of one candidate."""


def install(tools: Any, folder: str, watch: Any) -> None:
    """In the child, before the candidate is imported. `watch` (gpu.profile.Watch) wraps the built functions."""
    found = msgspec.convert(tools, Tools)
    recorded: list[Any] = []
    cuda_capture.install(lambda frame: recorded.append(frame["extension"]), stands_in=False)
    module: Any = sys.modules["torch.utils.cpp_extension"]
    builder = Builder(found, folder)

    def building(record: Callable[..., Any]) -> Callable[..., Any]:
        def load(*arguments: Any, **named: Any) -> ModuleType | str:
            record(*arguments, **named)
            extension = msgspec.convert(recorded.pop(), Extension)
            built = builder.build(extension)
            _wrap_operators(extension, watch)
            return built if isinstance(built, str) else _wrapped(built, watch)

        return load

    module.load_inline, module.load = building(module.load_inline), building(module.load)


def _wrapped(built: ModuleType, watch: Any) -> ModuleType:
    """The extension's module with its functions watched."""
    shown = ModuleType(built.__name__, built.__doc__)
    for name, value in vars(built).items():
        if not name.startswith("__"):
            setattr(shown, name, watch.wrapped(value) if callable(value) and not isinstance(value, type) else value)
    return shown


def _wrap_operators(extension: Extension, watch: Any) -> None:
    """The same for operators that it registered with torch."""
    for namespace, name in cuda_source.operators(extension):
        space = getattr(torch.ops, namespace)
        operator = getattr(space, name, None)
        if isinstance(operator, torch._ops.OpOverloadPacket):
            shown: Any = watch.wrapped(operator)
            if hasattr(operator, "default"):
                shown.default = watch.wrapped(operator.default)
            setattr(space, name, shown)


class Builder:
    """Compiles extensions into a folder and imports them."""

    def __init__(self, tools: Tools, folder: str) -> None:
        self._tools, self._folder = tools, folder
        self._until = time.monotonic() + tools.wall_s
        self._built = 0

    def build(self, extension: Extension) -> ModuleType | str:
        """The imported module; where it is none, the path of the library that was loaded. Raises ExtensionError."""
        reason = cuda_source.unlinkable(extension)
        if reason:
            raise ExtensionError(reason)
        self._built += 1
        name = re.sub(r"\W", "_", extension.name)[:64] or "extension"
        folder = os.path.join(self._folder, f"build_{self._built}")
        os.makedirs(folder)
        texts: dict[str, str] = {}
        parts = [self._cuda_part(extension, name, texts)] if extension.cuda_sources else []
        parts.append(self._host_part(extension, name, texts))
        running = [(part, self._start(part, folder, few=True)) for part in parts]
        objects = []
        for part, process in running:
            code, output = self._wait(process)
            if code and part.few and not cuda_child._certain(output, part.text, self._tools.headers):
                code, output = self._wait(self._start(part, folder, few=False))
            if code:
                for _, other in running:
                    _leave(other)
                raise ExtensionError(self._told(output, texts))
            objects.append(os.path.join(folder, part.target))
        library = os.path.join(folder, f"{name}.so")
        folders = [path for path in self._tools.libraries if os.path.isdir(path)]
        files = [path for path in self._tools.libraries if not os.path.isdir(path)]
        command = [self._tools.cxx, "-shared", *objects, "-o", library, "-Wl,--no-undefined-version"]
        command += [f"-L{path}" for path in folders] + _TORCH + files
        code, output = self._wait(_run(command, folder))
        if code:
            raise ExtensionError(self._told(output, texts))
        return _imported(name, library) if extension.python_module else _loaded(library)

    def _host_part(self, extension: Extension, name: str, texts: dict[str, str]) -> "_Part":
        text = cuda_stage._joined("host", ".cpp", extension.cpp_sources, extension.headers, texts)
        if extension.functions:
            bound = "".join(f'  m.def("{function}", &{function}, "{function}");\n' for function in extension.functions)
            text += f"\n{_PYBIND}PYBIND11_MODULE({name}, m) {{\n{bound}}}\n"
        flags = cuda_source.allowed_flags(extension.cflags)
        command = [self._tools.cxx, "-c", "-fPIC", *_common(name), *flags, *cuda_stage._standard(flags)]
        return _Part("host.cpp", "host.o", text, [*command, "-o", "host.o"], True)

    def _cuda_part(self, extension: Extension, name: str, texts: dict[str, str]) -> "_Part":
        arch = self._tools.arch
        text = cuda_stage._joined("cuda", ".cu", extension.cuda_sources, extension.headers, texts)
        flags = cuda_source.allowed_flags(extension.cuda_flags)
        exact = any(re.search(rf"{arch[3:]}a\b", flag) for flag in extension.cuda_flags)
        command = [self._tools.nvcc, "-c", f"-arch={arch}{'a' * exact}", "-Xcompiler", "-fPIC", "-cudart", "none"]
        command += ["-ccbin", self._tools.cxx, *cuda_stage._CUDA_FLAGS, *_common(name), *flags]
        command += [*cuda_stage._standard(flags), "-o", "cuda.o"]
        return _Part("cuda.cu", "cuda.o", text, command, not cuda_child._NEEDS_ALL.search(text))

    def _start(self, part: "_Part", folder: str, few: bool) -> "subprocess.Popen[str]":
        path = os.path.join(folder, part.file)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(part.text)
        includes = list(self._tools.includes)
        if few and part.few:
            small = os.path.join(folder, "few")
            cuda_child._write_few(small, part.text, includes[0])
            includes.insert(0, small)
        return _run([*part.command, *(f"-I{include}" for include in includes), path], folder)

    def _wait(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        try:
            output, _ = process.communicate(timeout=max(0.1, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _leave(process)
            raise ExtensionError(f"the compilers did not finish within {self._tools.wall_s:g} s") from None
        return process.returncode, output[-_KEPT_CHARS:]

    def _told(self, output: str, texts: dict[str, str]) -> str:
        """The first error that the compilers printed, in their words, and the candidate's line."""
        errors = compiler_text.printed_errors(output)
        if not errors:
            undefined = re.search(r"undefined (?:symbol|reference)[^\n]*", output)
            return compiler_text.trim(undefined[0] if undefined else output[-300:] or "the compiler failed")
        first = next((error for error in errors if error.file in texts), errors[0])
        with open(os.path.join(self._folder, "candidate.py"), encoding="utf-8") as file:
            line = cuda_stage._line_in_candidate(texts.get(first.file, ""), first.line, file.read())
        more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{first.text}{more}" + (f" [line {line}]" if line else "")


class _Part(msgspec.Struct, frozen=True):
    file: str
    target: str
    text: str
    command: list[str]
    few: bool
    """Whether small headers are worth a try."""


_TORCH = ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", "-lc10_cuda", "-ltorch_cuda"]


def _common(name: str) -> list[str]:
    return [f"-DTORCH_EXTENSION_NAME={name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]


def _run(command: list[str], folder: str) -> "subprocess.Popen[str]":
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip


def _leave(process: "subprocess.Popen[str]") -> None:
    """A compiler that is of no use any more: ended or, where walls let nobody signal, left to end with the child."""
    with contextlib.suppress(PermissionError):
        process.kill()


def _imported(name: str, library: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, library)
    spec = importlib.util.spec_from_file_location(name, library, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise _unloadable(error) from None
    return module


def _loaded(library: str) -> str:
    try:
        torch.ops.load_library(library)
    except (OSError, RuntimeError) as error:  # an undefined symbol; an operator that is registered twice
        raise _unloadable(error) from None
    return cuda_source.LibraryPath(library)


def _unloadable(error: Exception) -> ExtensionError:
    text = re.sub(r"^\S*\.so: ", "", str(error))
    return ExtensionError(f"the extension can't be loaded: {compiler_text.trim(text)}")


def finding(error: dict[str, Any], source: str) -> Finding | None:
    """A child's failure that was the compiler's; None for any other."""
    if error.get("type") != "ExtensionError":
        return None
    message = str(error.get("message", ""))
    place = _LINE.search(message)
    line = int(place[1]) if place else 0
    lines = source.splitlines()
    code = lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""
    text = _LINE.sub("", message).strip()
    category = "compile_timeout" if text.startswith("the compilers did not finish") else "compile_error"
    return Finding(stage="compile", category=category, headline=text, detail="From nvcc and g++.", line=line, code=code)
