"""Jit functions made again from their descriptions: for the interpreter and for the compiler, in processes that never
import the candidate.

Making them runs nothing of the candidate's: a function is defined from its text alone (`kernel_source.module_text`) and
gets its globals, defaults and annotations as values. What the body does when it is interpreted is for the caller to
check before (it may call `getattr`, name attributes of Triton's modules, loop for ever). Whether `triton.jit` gives a
`JITFunction` or an `InterpretedFunction` depends on TRITON_INTERPRET, as always.
"""

import builtins
import importlib
import os
import types
from typing import Any

import triton
import triton.language as tl

from core.evaluation import kernel_source as source
from core.evaluation.kernel_source import Global, KernelDefinition, KernelSourceError

_CONSTANT_BUILTINS = """
abs all any bool dict divmod enumerate float int isinstance len list map max min pow range repr reversed round set
sorted str sum tuple zip
"""
"""What constexpr functions may use: they are Python, run on constants."""
_JIT_BUILTINS = {name: getattr(builtins, name) for name in source.BUILTINS}
_CONSTEXPR_BUILTINS = {name: getattr(builtins, name) for name in _CONSTANT_BUILTINS.split()}


def load_kernels(definitions: dict[str, KernelDefinition], folder: str) -> dict[str, Any]:
    """Every definition's jit function by key, each in a namespace and a file of its own in `folder` (Triton reads
    sources from files). The files' lines are the candidate's, so that line numbers in errors are right as they are.

    Raises KernelSourceError for definitions that describe no kernels.
    """
    namespaces: dict[str, dict[str, Any]] = {}
    kernels: dict[str, Any] = {}
    for index, (key, definition) in enumerate(definitions.items()):
        # Triton names compiled helpers after their module: equal names in one module would be one function.
        name = f"kernel_{index}"
        usable = _JIT_BUILTINS if definition.kind == "jit" else _CONSTEXPR_BUILTINS
        namespaces[key] = {"__name__": name, "__builtins__": dict(usable)}
        path = os.path.join(folder, f"{name}.py")
        text = source.module_text(definition)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        kernels[key] = _define(definition, compile(text, path, "exec"), namespaces[key], kernels)
    for key, definition in definitions.items():
        for name, described in definition.globals.items():
            if described == source.Builtin(name=name):
                continue  # Python's own, if it may be used at all
            namespaces[key][name] = value_of(described, kernels)
    return kernels


def value_of(described: Global, kernels: dict[str, Any]) -> Any:
    """The object that a description stands for; raises KernelSourceError for what is not allowed."""
    value = _plain_value(described, kernels)
    return tl.constexpr(value) if getattr(described, "constexpr", False) else value


def _plain_value(described: Global, kernels: dict[str, Any]) -> Any:
    match described:
        case source.Constant():
            return described.value
        case source.Module():
            return _module(described.path)
        case source.Member():
            return _member(described)
        case source.Kernel():
            if described.key not in kernels:
                raise KernelSourceError(f"no definition of kernel {described.key}")
            return kernels[described.key]
        case source.Dtype():
            if described.name not in _DTYPES:
                raise KernelSourceError(f"no dtype {described.name}")
            return tl.dtype(described.name)
        case source.Items():
            return tuple(value_of(part, kernels) for part in described.values)
        case source.Builtin():
            return _JIT_BUILTINS.get(described.name) or _Function(described.name)
        case source.Foreign():
            return _stand_in(described)


_DTYPES = frozenset(
    [*tl.dtype.SINT_TYPES, *tl.dtype.UINT_TYPES, *tl.dtype.FP_TYPES, *tl.dtype.STANDARD_FP_TYPES, "void"]
)


def _module(path: str) -> types.ModuleType:
    if not source.module_allowed(path):
        raise KernelSourceError(f"kernel code can't use module {path}")
    try:
        return importlib.import_module(path)
    except ImportError as error:
        raise KernelSourceError(f"no module {path}") from error


def _member(described: source.Member) -> Any:
    value = getattr(_module(described.module), described.name, None)
    home = str(getattr(value, "__module__", "")).partition(".")[0]
    known = source.member_allowed(described.module, described.name) and home in ("triton", "math", "core")
    if not known or isinstance(value, types.ModuleType):
        raise KernelSourceError(f"kernel code can't use {described.module}.{described.name}")
    return value


def _define(definition: KernelDefinition, code: Any, namespace: dict[str, Any], kernels: dict[str, Any]) -> Any:
    exec(code, namespace)  # one def without defaults, annotations or decorators: nothing of it runs
    function = namespace[definition.name]
    if definition.kind != "jit":
        _give_defaults(definition, function, kernels)
        return triton.constexpr_function(function)
    function.__annotations__ = dict(definition.annotations)
    _give_defaults(definition, function, kernels)
    options: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in definition.jit_options.items()
    }
    return triton.jit(**options)(function)


def _give_defaults(definition: KernelDefinition, function: Any, kernels: dict[str, Any]) -> None:
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    values = {name: value_of(described, kernels) for name, described in definition.defaults.items()}
    given = [name for name in positional if name in values]
    if given != list(positional[len(positional) - len(given) :]) or values.keys() - {*positional, *only}:
        raise KernelSourceError(f"kernel {definition.name}: defaults of {sorted(values)} don't fit its parameters")
    function.__defaults__ = tuple(values[name] for name in given)
    function.__kwdefaults__ = {name: values[name] for name in only if name in values} or None


class _Object:
    """Stands for a value that did not travel."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Function(_Object):
    """Callable, as the compiler's check for ordinary Python functions wants it; calling it refuses."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NameError(f"{self._text} is ordinary Python: a kernel can't call it")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Function(f"{self._text}.{name}")


def _stand_in(described: source.Foreign) -> Any:
    if described.kind == "class":
        return type(described.text, (), {})
    if described.kind == "function":
        return _Function(described.text)
    if described.kind == "module":
        return _module_stand_in(described.text, described.constants)
    return _Object(described.text)


def _module_stand_in(name: str, constants: dict[str, int | float]) -> types.ModuleType:
    """A module whose only real contents are numbers; everything else in it is a function that refuses."""
    module = types.ModuleType(name)
    below: dict[str, dict[str, int | float]] = {}
    for path, value in constants.items():
        first, _, rest = path.partition(".")
        if rest:
            below.setdefault(first, {})[rest] = value
        else:
            setattr(module, first, value)
    for first, inner in below.items():
        setattr(module, first, _module_stand_in(f"{name}.{first}", inner))

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Function(f"{name}.{attribute}")

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module
