"""Jit functions and their launches as plain data (`kernel_source`): runs where the candidate is imported.

Works on `JITFunction` and on the interpreter's `InterpretedFunction` alike; wrappers such as autotune are peeled by the
caller. What it says of a kernel is taken once, at the first description; it decides nothing and trusts nothing: the
candidate shares this process and may have changed anything here, so whoever reads a description checks it as text.
"""

import builtins
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable
from typing import Any

import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import ConstexprFunction, JITFunction, KernelParam, mangle_type

from core.evaluation import kernel_source as source
from core.evaluation.kernel_source import Global, KernelDefinition, Launch

_JIT = (JITFunction, InterpretedFunction, ConstexprFunction)
_PLAIN = (int, float, str, bool, type(None))
_OPTIONS = ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment")
_MAX_TEXT = 4096
_DEF = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)


class Describer:
    """Gives every jit function that it meets a key, and keeps the definitions under their keys."""

    def __init__(self) -> None:
        self.definitions: dict[str, KernelDefinition] = {}
        self._keys: dict[int, str] = {}
        self._kept: list[Any] = []
        """Described objects stay alive: another one can't get their identity."""
        self._members: dict[int, source.Member] = {}

    def key(self, kernel: Any) -> str:
        """The key of a jit function, described with all that it calls; raises KernelSourceError where its source can't
        be read."""
        known = self._keys.get(id(kernel))
        if known is not None:
            return known
        if not isinstance(kernel, _JIT):
            raise source.KernelSourceError(f"a {type(kernel).__name__} is not a jit function")
        if len(self._keys) >= source.MAX_DEFINITIONS:
            raise source.KernelSourceError(f"more than {source.MAX_DEFINITIONS} jit functions")
        name = kernel.fn.__name__
        key, number = name, 2
        while key in self._keys.values():
            key, number = f"{name}#{number}", number + 1
        self._keys[id(kernel)] = key  # before its globals: kernels may be recursive
        self._kept.append(kernel)
        self.definitions[key] = self._define(kernel)
        return key

    def launch(self, kernel: Any, arguments: dict[str, Any], options: dict[str, Any], aligned: Iterable[str]) -> Launch:
        """One launch. `arguments`: every parameter's value, defaults filled in; `aligned`: names of tensors whose
        address a GPU would find divisible by 16 (integers are looked at here)."""
        key = self.key(kernel)
        return launch_of(key, self.definitions[key], arguments, options, aligned, self._value)

    def _define(self, kernel: Any) -> KernelDefinition:
        function = kernel.fn
        text, line = _source_of(kernel)
        definition = KernelDefinition(name=function.__name__, source=text, line=line)
        tree = source.parse(definition)
        parameters = inspect.signature(function).parameters
        read = source.names_read(tree)
        given = getattr(kernel, "kwargs", None) or {name: getattr(kernel, name, None) for name in _OPTIONS}
        return KernelDefinition(
            name=function.__name__,
            source=text,
            line=line,
            globals={
                name: self._value(value, source.attribute_paths(tree, name))
                for name, value in sorted(_scope(function, read).items())
            },
            defaults={
                name: self._value(parameter.default)
                for name, parameter in parameters.items()
                if parameter.default is not inspect.Parameter.empty
            },
            annotations={
                name: text
                for number, (name, parameter) in enumerate(parameters.items())
                if (text := str(KernelParam(number, parameter, False, False).annotation))
            },
            jit_options={name: _plain_option(given[name]) for name in _OPTIONS if given.get(name)},
            kind="constexpr_function" if isinstance(kernel, ConstexprFunction) else "jit",
        )

    def _value(self, value: Any, paths: Iterable[str] = ()) -> Global:
        """Any object as plain data; `paths` are what the kernel reads below it, if it is a module."""
        if isinstance(value, tl.constexpr):
            inner = self._value(value.value)
            if isinstance(inner, (source.Constant, source.Dtype, source.Kernel, source.Items)):
                return _constexpr(inner)
            return inner
        if isinstance(value, types.ModuleType):
            return _module(value, paths)
        member = self._member(value)
        if member is not None:
            return member
        if isinstance(value, _JIT):
            return source.Kernel(key=self.key(value))
        if isinstance(value, tl.dtype) and type(value) is tl.dtype:
            return source.Dtype(name=str(value))
        if type(value) in _PLAIN and _small(value):
            return source.Constant(value=value)
        if type(value) in (tuple, list) and len(value) <= 64:
            return source.Items(values=tuple(self._value(part) for part in value))
        name = getattr(value, "__name__", "")
        if isinstance(name, str) and name and getattr(builtins, name, None) is value:
            return source.Builtin(name=name)
        return _foreign(value)

    def _member(self, value: Any) -> source.Member | None:
        """Where in Triton's language an object lives, by identity: names and `__module__` can be set by anyone."""
        if not self._members:
            modules = sorted((name for name in sys.modules if source.module_allowed(name)), key=_preference)
            for path in modules:
                for name, item in list(vars(sys.modules[path]).items()):
                    if callable(item) and source.member_allowed(path, name) and type(item) is not types.ModuleType:
                        self._members.setdefault(id(item), source.Member(module=path, name=name))
        return self._members.get(id(value))


def describe(kernel: Any) -> tuple[str, dict[str, KernelDefinition]]:
    """The key of one jit function, and its definition with those of all that it calls."""
    describer = Describer()
    return describer.key(kernel), describer.definitions


def launch_of(
    key: str,
    definition: KernelDefinition,
    arguments: dict[str, Any],
    options: dict[str, Any],
    aligned: Iterable[str],
    value_of: Callable[[Any], Global],
) -> Launch:
    """What a GPU would compile a launch for; `value_of` describes a compile-time argument."""
    annotations, jit_options = definition.annotations, definition.jit_options
    names = list(arguments)
    fixed = _named(jit_options.get("do_not_specialize", ()), names)
    unaligned = fixed | _named(jit_options.get("do_not_specialize_on_alignment", ()), names)
    kinds: dict[str, str] = {}
    constants: dict[str, Global] = {}
    divisible = [name for name in aligned if name not in unaligned]
    for name, value in arguments.items():
        annotation = annotations.get(name, "")
        number = type(value) is int
        if "constexpr" in annotation or value is None or isinstance(value, tl.constexpr):
            constants[name] = value_of(value.value if isinstance(value, tl.constexpr) else value)
        elif number and value == 1 and name not in fixed and not _typed(annotation):
            constants[name] = source.Constant(value=1)
        else:
            kinds[name] = _typed(annotation) or _type_of(value)
            if number and value % 16 == 0 and name not in unaligned:
                divisible.append(name)
    return Launch(
        kernel=key,
        types=kinds,
        constants=constants,
        aligned=tuple(sorted(divisible)),
        options={name: value for name, value in options.items() if type(value) in (int, bool, str, type(None))},
    )


def _preference(path: str) -> tuple[int, int, str]:
    """Triton's language first, public modules before those below them."""
    return (0 if path.startswith("triton") else 1, path.count(".") if path != "triton" else 9, path)


def _source_of(kernel: Any) -> tuple[str, int]:
    """The function's text as Triton takes it, and the line of its `def`."""
    raw = getattr(kernel, "raw_src", None)
    if raw is not None:
        start = kernel.starting_line_number
    else:
        try:
            raw, start = inspect.getsourcelines(kernel.fn)
        except OSError as error:
            raise source.KernelSourceError("a kernel must be defined in the candidate's file") from error
    text = textwrap.dedent("".join(raw))
    match = _DEF.search(text)
    if match is None:
        raise source.KernelSourceError(f"kernel {kernel.fn.__name__}: its source holds no def")
    return text[match.start() :].rstrip(), start + text.count("\n", 0, match.start())


def _scope(function: types.FunctionType, names: set[str]) -> dict[str, Any]:
    """Values of the names that are closure variables, globals or Python's own functions."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    found = {}
    for name in names:
        if name in cells:
            try:
                found[name] = cells[name].cell_contents
            except ValueError:
                continue  # a closure variable that has no value yet
        elif name in function.__globals__:
            found[name] = function.__globals__[name]
        elif hasattr(builtins, name):
            found[name] = getattr(builtins, name)
    return found


def _constexpr(value: Any) -> Any:
    return type(value)(**{name: getattr(value, name) for name in value.__struct_fields__} | {"constexpr": True})


def _module(value: types.ModuleType, paths: Iterable[str]) -> Global:
    name = str(getattr(value, "__name__", "?"))
    if source.module_allowed(name) and sys.modules.get(name) is value:
        return source.Module(path=name)
    constants: dict[str, int | float] = {}
    for path in paths:
        part: Any = value
        for step in path.split("."):
            part = getattr(part, step, None)
        if type(part) in (int, float) and _small(part):
            constants[path] = part
    return source.Foreign(kind="module", text=name[:200], constants=constants)


def _foreign(value: Any) -> source.Foreign:
    kind = "class" if isinstance(value, type) else "function" if callable(value) else "object"
    usable = bool(getattr(value, "__triton_aggregate__", False)) or (
        hasattr(value, "_fields") and (kind == "class" or isinstance(value, tuple))
    )
    name = getattr(value, "__qualname__", "") or type(value).__qualname__
    return source.Foreign(kind=kind, text=str(name)[:200], usable=usable)


def _small(value: Any) -> bool:
    """Whether it fits into a message."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is str:
        return len(value) <= _MAX_TEXT and not any("\ud800" <= letter <= "\udfff" for letter in value)
    return True


def _plain_option(value: Any) -> bool | tuple[int | str, ...]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(item for item in value if type(item) in (int, str))
    return bool(value)


def _named(option: bool | tuple[int | str, ...], names: list[str]) -> set[str]:
    """Parameters that an option names or numbers."""
    items = option if isinstance(option, tuple) else ()
    return {names[item] if isinstance(item, int) and item < len(names) else str(item) for item in items}


def _typed(annotation: str) -> str:
    """The type that an annotation fixes, if it fixes one."""
    return annotation if re.fullmatch(r"\*?k?(u?i(1|8|16|32|64)|u1|fp(8|16|32|64)|bf16)", annotation) else ""


def _type_of(value: Any) -> str:
    if isinstance(value, (int, float)) or hasattr(value, "data_ptr") or hasattr(value, "base"):
        try:
            return str(mangle_type(value))
        except Exception:  # the candidate's own class may do anything
            pass
    return f"?{type(value).__name__}"
