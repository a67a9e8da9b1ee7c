"""`torch.utils.cpp_extension` as a CUDA C++ candidate sees it where there is no GPU: it records, it builds nothing.

Runs in the process that imports the candidate, before it does. The module is replaced whole: the real one looks for
compilers and needs setuptools. What is recorded is sent as one frame a call, `{"extension": {...}}` (`cuda_source`);
the names that the extension would have are there, its operators in `torch.ops` too, and calling one raises
NeedsGpuError, which the caller takes as "reached its kernels". The candidate can replace all this as it can everything
in its own process: what it sends is compiled, never believed.
"""

import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from core.evaluation.cuda_source import MAX_EXTENSIONS, MAX_SOURCE_BYTES, Extension, LibraryPath, operators

_MODULE = "torch.utils.cpp_extension"
_BOUND = re.compile(r"\bdef\s*\(\s*\"(\w+)\"")
_HOST_ENDINGS = (".cpp", ".cc", ".cxx", ".c")


class NeedsGpuError(RuntimeError):
    """A function of a CUDA extension was called; there is no GPU to run it."""


def install(send: Callable[[dict[str, Any]], None], *, stands_in: bool = True) -> None:
    """Put the recording module in place of `torch.utils.cpp_extension`; `send` gets each call's frame. stands_in: what
    the built extension would bring is there by name; False where the caller builds it."""
    count = 0

    def record(extension: Extension) -> types.ModuleType | str:
        nonlocal count
        count += 1
        size = sum(len(text.encode("utf-8", "replace")) for text in extension.cpp_sources + extension.cuda_sources)
        if size > MAX_SOURCE_BYTES:
            raise RuntimeError(
                f"extension {extension.name} has {size:,} bytes of source, more than {MAX_SOURCE_BYTES:,}"
            )
        if count > MAX_EXTENSIONS:
            raise RuntimeError(f"more than {MAX_EXTENSIONS} extensions")
        send({"extension": msgspec.to_builtins(extension)})
        return _stand_in(extension) if stands_in else ""

    def load_inline(
        name: str,
        cpp_sources: Any,
        cuda_sources: Any = None,
        sycl_sources: Any = None,
        functions: Any = None,
        extra_cflags: Any = None,
        extra_cuda_cflags: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> types.ModuleType | str:
        if functions is not None and not isinstance(functions, (str, list, tuple, Mapping)):
            raise ValueError(f"Expected 'functions' to be a list or dict, but was {type(functions)}")
        return record(
            Extension(
                name=str(name),
                cpp_sources=_texts(cpp_sources),
                cuda_sources=_texts(cuda_sources),
                functions=_texts(functions),
                cflags=_texts(extra_cflags),
                cuda_flags=_texts(extra_cuda_cflags),
                headers=not kwargs.get("no_implicit_headers", False),
                python_module=bool(kwargs.get("is_python_module", True)),
            )
        )

    def load(
        name: str, sources: Any, extra_cflags: Any = None, extra_cuda_cflags: Any = None, *args: Any, **kwargs: Any
    ) -> types.ModuleType | str:
        paths = _texts(sources)
        return record(
            Extension(
                name=str(name),
                cpp_sources=tuple(_read(path) for path in paths if path.endswith(_HOST_ENDINGS)),
                cuda_sources=tuple(_read(path) for path in paths if not path.endswith(_HOST_ENDINGS)),
                cflags=_texts(extra_cflags),
                cuda_flags=_texts(extra_cuda_cflags),
                headers=False,
                python_module=bool(kwargs.get("is_python_module", True)),
            )
        )

    module = types.ModuleType(_MODULE, "Records CUDA extensions instead of building them.")
    module.load_inline, module.load = load_inline, load  # type: ignore[attr-defined]
    module.CUDA_HOME = "/usr/local/cuda"  # type: ignore[attr-defined]
    module.include_paths = lambda *args, **kwargs: []  # type: ignore[attr-defined]
    module.is_ninja_available = lambda: True  # type: ignore[attr-defined]
    module.verify_ninja_availability = lambda: None  # type: ignore[attr-defined]
    sys.modules[_MODULE] = module
    torch.utils.cpp_extension = module  # type: ignore[attr-defined]


def _texts(value: Any) -> tuple[str, ...]:
    """A string, list or map of strings as load_inline takes them."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(str(part) for part in value)


def _read(path: str) -> str:
    if os.path.getsize(path) > MAX_SOURCE_BYTES:
        raise RuntimeError(f"{os.path.basename(path)} is larger than {MAX_SOURCE_BYTES:,} bytes")
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _stand_in(extension: Extension) -> types.ModuleType | str:
    """A module with the names that the built extension would have; its library's path where it is no module."""
    for namespace, name in operators(extension):
        space = getattr(torch.ops, namespace)
        if not hasattr(space, name):  # torch's own stay
            operator: Any = _function(f"torch.ops.{namespace}", name)
            operator.default = operator
            setattr(space, name, operator)
    if not extension.python_module:
        return LibraryPath(f"{extension.name}.so")
    module = types.ModuleType(extension.name)
    text = "\n".join(extension.cpp_sources + extension.cuda_sources)
    for name in extension.functions or _BOUND.findall(text):
        setattr(module, name, _function(extension.name, name))
    return module


def _function(extension: str, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise NeedsGpuError(f"{extension}.{name} needs a GPU to run")

    call.__name__ = name
    return call
