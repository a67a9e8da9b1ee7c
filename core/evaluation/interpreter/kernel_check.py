"""From a kernel's source to something that runs, without trusting either: the executor's only door for candidate code.

A kernel arrives as text and a table of what its global names mean (`kernel_source.KernelDefinition`). It may use what
Triton's own compiler takes and nothing else: its statements, arithmetic, Triton's language and other kernels. Python's
objects are out of reach because attributes are checked against a list and names against the table, so a kernel can't
call ordinary Python, here or on a GPU.
"""

import ast
import functools
import importlib
import math
import types
from typing import Any

import triton
import triton.language as tl
from triton.compiler.code_generator import CodeGenerator
from triton.runtime import interpreter, jit

from core.evaluation import kernel_source as ks
from core.evaluation.interpreter.tracing import IllegalKernelError, UnsupportedError
from core.evaluation.link import MAX_DEPTH

_MODULES = (
    "triton.language", "triton.language.core", "triton.language.math", "triton.language.standard",
    "triton.language.random", "triton.language.extra", "triton.language.extra.libdevice",
    "triton.language.extra.cuda", "triton.language.extra.cuda.libdevice", "triton.language.extra.hip",
    "triton.language.extra.hip.libdevice",
)  # fmt: skip
_SAFE_BUILTINS: dict[str, Any] = {
    builtin.__name__: builtin
    for builtin in (len, list, range, float, int, bool, isinstance, hasattr, print, min, max, tuple, abs)
}
_MATH = {name: getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")}
_TRITON = {"cdiv": lambda x, y: (x + (y - 1)) // y, "next_power_of_2": triton.next_power_of_2}
_STRUCTURE = (
    ast.Module, ast.arguments, ast.arg, ast.Load, ast.Store, ast.keyword, ast.operator, ast.unaryop, ast.cmpop,
    ast.boolop, ast.expr_context, ast.comprehension, ast.Slice, ast.FormattedValue, ast.Starred, ast.withitem,
)  # fmt: skip
_NEVER = (ast.ClassDef, ast.Lambda, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Try, ast.Raise,
          ast.Delete, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFunctionDef, ast.NamedExpr, ast.With)  # fmt: skip


@functools.cache
def _vocabulary() -> dict[tuple[str, str], Any]:
    """(module, name) -> object, for everything of Triton's language that kernels may name; filled before any patch."""
    found: dict[tuple[str, str], Any] = {}
    for path in _MODULES:
        try:
            module = importlib.import_module(path)
        except ImportError:
            continue
        for name, value in vars(module).items():
            if name.startswith("_"):
                continue
            language = isinstance(value, (jit.JITFunction, interpreter.InterpretedFunction, tl.dtype, tl.constexpr))
            classes = isinstance(value, type) and getattr(value, "__module__", "").startswith("triton.language")
            builtin = callable(value) and tl.core.is_builtin(value)
            functions = isinstance(value, types.FunctionType) and value.__module__.startswith("triton.language.extra")
            known = value is tl.PropagateNan or (isinstance(value, types.ModuleType) and value.__name__ in _MODULES)
            if language or classes or builtin or functions or known:
                found[path, name] = value
    return found


@functools.cache
def _attributes() -> frozenset[str]:
    """Attributes that values inside a kernel may have."""
    kinds = [tl.tensor, tl.dtype, tl.block_type, tl.pointer_type, tl.constexpr, tl.tuple]
    kinds += [getattr(tl, name) for name in ("tensor_descriptor", "tensor_descriptor_base") if hasattr(tl, name)]
    names = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    names |= {"shape", "dtype", "type", "value", "element_ty", "scalar", "T", "primitive_bitwidth", "numel", "name"}
    names |= {"block_shape", "strides", "int_bitwidth", "fp_mantissa_width", "int_signedness"}
    return frozenset(names - {"handle", "to_ir", "cache_key_part", "codegen_name"})


def warm() -> None:
    """Before the language is patched and before any fork."""
    _vocabulary()
    _attributes()


def _refuse(node: ast.AST, text: str) -> IllegalKernelError:
    return IllegalKernelError(text, getattr(node, "lineno", 0))


class UnknownNameError(IllegalKernelError):
    """A name that Triton's language does not have: a slip, not a trespass."""


class _Namespace:
    """A module as kernels see it: its place in Triton's language, or a few numbers."""

    def __init__(self, name: str, module: types.ModuleType | None, members: dict[str, Any]) -> None:
        self.name, self.module, self.members = name, module, members

    def member(self, attribute: str) -> Any:
        """The member, or None."""
        if self.module is None:
            return self.members.get(attribute)
        if (self.module.__name__, attribute) not in _vocabulary():
            return None
        value = getattr(self.module, attribute)  # as patched for the interpreter, not as it was
        return _named(f"{self.name}.{attribute}", value)


def _named(name: str, value: Any) -> Any:
    """A member of Triton's language as kernels see it: modules and enumerations are namespaces."""
    if isinstance(value, types.ModuleType):
        return _Namespace(name, value, {})
    if value is tl.PropagateNan:
        return _Namespace(name, None, dict(value.__members__))
    return value


class _Checked(ast.NodeTransformer):
    """Refuses what is not Triton's language and replaces chains such as tl.math.exp by one resolved name."""

    def __init__(self, table: dict[str, Any], constexpr_function: bool = False) -> None:
        self.table = table
        self.assigning = "__to_constant" if constexpr_function else "__to_tensor"
        self.resolved: dict[str, Any] = {}
        self.depth = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        kind = type(node).__name__
        known = isinstance(node, (ast.stmt, ast.expr)) and hasattr(CodeGenerator, f"visit_{kind}")
        if isinstance(node, _NEVER) or not (known or isinstance(node, _STRUCTURE)):
            raise _refuse(node, f"Triton's language has no {kind}")
        return super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if self.depth:
            raise _refuse(node, "a kernel can't define functions")
        self.depth += 1
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
            self.visit(argument)
        # Defaults are values of the description; their text is not evaluated.
        node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
        node.args.kw_defaults = [part and ast.Constant(None) for part in node.args.kw_defaults]
        self._defined_once(node)
        node.body = [self.visit(part) for part in node.body]
        return node

    def _defined_once(self, function: ast.FunctionDef) -> None:
        """Refuses a local constexpr of a name that has a value already, as Triton's compiler does. Of statements inside
        branches and loops nothing is known here; a constexpr function is Python."""
        if self.assigning == "__to_constant":
            return
        arguments = function.args
        known = {part.arg for part in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        for part in function.body:
            if isinstance(part, ast.AnnAssign) and part.value is not None and isinstance(part.target, ast.Name):
                if part.target.id in known and self._is_constexpr(part.annotation):
                    raise _refuse(part, f"{part.target.id} has a value already: a constexpr can't be given another one")
                known.add(part.target.id)
            elif isinstance(part, ast.Assign):
                names = (at for target in part.targets for at in ast.walk(target) if isinstance(at, ast.Name))
                known |= {name.id for name in names if isinstance(name.ctx, ast.Store)}

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        assigned = ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
        return self._assigned(assigned, "__to_constant" if self._is_constexpr(node.annotation) else self.assigning)

    def visit_Assign(self, node: ast.Assign) -> Any:
        return self._assigned(node, self.assigning)

    def _assigned(self, node: ast.Assign, kind: str) -> ast.Assign:
        self.generic_visit(node)
        if len(node.targets) > 1:
            raise _refuse(node, "Triton's language has no chained assignment")
        call = ast.Call(func=ast.Name(id=kind, ctx=ast.Load()), args=[node.value], keywords=[])
        node.value = ast.copy_location(call, node.value)
        return node

    def _is_constexpr(self, annotation: ast.expr) -> bool:
        """Whether a local's annotation is `tl.constexpr`, under whichever name: its value then stays a compile-time
        one, which shapes may be made of."""
        chain: list[str] = []
        while isinstance(annotation, ast.Attribute):
            chain.append(annotation.attr)
            annotation = annotation.value
        found = self.table.get(annotation.id) if isinstance(annotation, ast.Name) else None
        for name in reversed(chain):
            found = found.member(name) if isinstance(found, _Namespace) else None
        return found is tl.constexpr

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id.startswith("__"):
            raise _refuse(node, f"name {node.id}")
        return node

    def visit_keyword(self, node: ast.keyword) -> Any:
        if node.arg is None or node.arg.startswith("_") or node.arg == "member":  # parameters of the interpreter's own
            raise _refuse(node.value, f"a kernel can't pass {node.arg or '**'}")
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        if node.arg.startswith("__"):
            raise _refuse(node, f"name {node.arg}")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if not isinstance(node.ctx, ast.Load):
            raise _refuse(node, f"a kernel can't set .{node.attr}")
        chain: list[str] = []
        root: ast.AST = node
        while isinstance(root, ast.Attribute):
            chain.append(root.attr)
            root = root.value
        found = self.table.get(root.id) if isinstance(root, ast.Name) else None
        if isinstance(found, _Namespace):
            return self._member(node, found, list(reversed(chain)))
        if node.attr not in _attributes():
            raise _refuse(node, f"a kernel can't use .{node.attr}")
        node.value = self.visit(node.value)
        return node

    def _member(self, node: ast.AST, found: _Namespace, chain: list[str]) -> ast.AST:
        value: Any = found
        for index, name in enumerate(chain):
            if isinstance(value, _Namespace):
                inner = value.member(name)
                if inner is None and value.module is not None and not hasattr(value.module, name):
                    raise UnknownNameError(f"{value.name} has no attribute {name!r}", getattr(node, "lineno", 0))
                if inner is None:
                    raise _refuse(node, f"a kernel can't use {value.name}.{'.'.join(chain[index:])}")
                value = inner
            elif name in _attributes():
                value = getattr(value, name)
            else:
                raise _refuse(node, f"a kernel can't use .{name}")
        if isinstance(value, _Namespace):
            raise _refuse(node, f"{value.name} is a module")
        name = f"__g{len(self.resolved)}"
        self.resolved[name] = value
        return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node)


class CheckedKernel(interpreter.InterpretedFunction):
    """A kernel of the candidate's as the interpreter runs it."""

    def __init__(self, definition: ks.KernelDefinition, function: Any) -> None:
        self.definition = definition
        self.fn = function
        self.kwargs: dict[str, Any] = {}
        self.pre_run_hooks: list[Any] = []
        self.arg_names = list(function.__code__.co_varnames[: function.__code__.co_argcount])
        self.constexprs = {name for name, text in definition.annotations.items() if text == "constexpr"}

    def rewrite(self) -> Any:
        return self.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class Kernels:
    """The candidate's kernels by key; each is checked and built when it is first needed."""

    def __init__(self, path: str) -> None:
        self.definitions: dict[str, ks.KernelDefinition] = {}
        self._path = path
        """What tracebacks call the candidate's file."""
        self._built: dict[str, CheckedKernel | None] = {}

    def add(self, key: str, definition: ks.KernelDefinition) -> None:
        if key in self.definitions or len(self.definitions) >= ks.MAX_DEFINITIONS:
            raise ValueError(f"kernel {key} is described twice, or too many are")
        if any(
            ks.nesting(value) > MAX_DEPTH for value in (*definition.globals.values(), *definition.defaults.values())
        ):
            raise ValueError(f"kernel {key} names a value nested deeper than {MAX_DEPTH}")
        self.definitions[key] = definition

    def get(self, key: str) -> CheckedKernel:
        """Raises IllegalKernelError for what Triton's language does not have, with the candidate's line."""
        if key in self._built:
            kernel = self._built[key]
            if kernel is None:
                definition = self.definitions[key]
                raise IllegalKernelError(f"{definition.name} calls itself", definition.line)
            return kernel
        if key not in self.definitions:
            raise ValueError(f"kernel {key} was not described")
        self._built[key] = None
        kernel = self._built[key] = self._build(self.definitions[key])
        return kernel

    def built(self) -> list[tuple[str, "CheckedKernel"]]:
        return [(key, kernel) for key, kernel in self._built.items() if kernel is not None]

    def _build(self, definition: ks.KernelDefinition) -> CheckedKernel:
        try:
            tree = ks.parse(definition)
        except ks.KernelSourceError as error:
            raise IllegalKernelError(str(error), definition.line) from None
        ast.increment_lineno(tree, definition.line - 1)
        own = _locals(tree)
        for name in (*definition.globals, definition.name):
            if name.startswith("__") or (name == "getattr" and definition.globals.get(name) != ks.Builtin(name=name)):
                raise IllegalKernelError(f"name {name}", definition.line)
        table = {
            name: self._global(name, what, definition) for name, what in definition.globals.items() if name not in own
        }
        checker = _Checked(table, definition.kind == "constexpr_function")
        module = ast.Module(body=[checker.visit(tree)], type_ignores=[])
        ast.fix_missing_locations(module)
        namespace: dict[str, Any] = {
            "__builtins__": _SAFE_BUILTINS,
            "__to_tensor": _to_tensor,
            "__to_constant": _to_constant,
            "getattr": _getattr,
            **{name: value for name, value in table.items() if not isinstance(value, _Namespace)},
            **checker.resolved,
        }
        exec(compile(module, self._path, "exec"), namespace)
        function = namespace[definition.name]
        values = {name: self._global(name, what, definition) for name, what in definition.defaults.items()}
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        function.__defaults__ = tuple(values[name] for name in names if name in values)
        function.__kwdefaults__ = {name: value for name, value in values.items() if name not in names} or None
        return CheckedKernel(definition, function)

    def _global(self, name: str, what: Any, definition: ks.KernelDefinition, argument: bool = False) -> Any:
        """What a global name of a kernel means here."""
        line = definition.line
        match what:
            case ks.Module(path="math"):
                return _Namespace("math", None, _MATH)
            case ks.Module(path="triton"):
                return _Namespace("triton", None, {**_TRITON, "language": _Namespace("tl", tl, {})})
            case ks.Member(module="triton") if what.name in _TRITON:
                return _TRITON[what.name]
            case ks.Module() if what.path in _MODULES:
                return _Namespace(name, importlib.import_module(what.path), {})
            case ks.Member() if (what.module, what.name) in _vocabulary():
                value = getattr(importlib.import_module(what.module), what.name)
                return _named(name, value)
            case ks.Kernel():
                return self.get(what.key)
            case ks.Dtype():
                return tl.dtype(what.name)
            case ks.Constant():
                if not what.constexpr and not argument and name in definition.globals:
                    hint = f"make it {name}: tl.constexpr = tl.constexpr({what.value!r}) or pass it as an argument"
                    raise IllegalKernelError(f"{name} is a plain global, which a kernel can't see: {hint}", line)
                return what.value
            case ks.Items():
                return tuple(self._global(name, part, definition, argument=True) for part in what.values)
            case ks.Builtin():
                if what.name == "getattr":
                    return _getattr
                if what.name in _SAFE_BUILTINS:
                    return _SAFE_BUILTINS[what.name]
                raise IllegalKernelError(f"Python's {what.name}() can't be used in a kernel", line)
            case ks.Foreign(usable=True):
                raise UnsupportedError(f"{what.text} in a kernel")
            case ks.Foreign(kind="module"):
                return _Namespace(what.text, None, dict(what.constants))
        text = what.text if isinstance(what, ks.Foreign) else getattr(what, "path", getattr(what, "name", name))
        raise IllegalKernelError(f"{text} is ordinary Python: a kernel can't use it", line)


def _locals(tree: ast.FunctionDef) -> set[str]:
    """Names that are the function's own."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def _to_tensor(value: Any) -> Any:
    return interpreter.interpreter_semantic.to_tensor(value, False)


def _to_constant(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _getattr(value: Any, name: str, *default: Any) -> Any:
    if name not in _attributes():
        raise IllegalKernelError(f"a kernel can't use .{name}", 0)
    return getattr(value, name, *default)
