"""From a kernel's source to something that runs, without trusting either: the executor's only door for candidate code.

A kernel arrives as text and a table of what its global names mean (`kernel_source.KernelDefinition`). It may use what
Triton's own compiler takes and nothing else: its statements, arithmetic, Triton's language and other kernels. Python's
objects are out of reach because attributes are checked against a list and names against the table, so a kernel can't
call ordinary Python, here or on a GPU.
"""

import ast
import functools
import importlib
import types
from typing import Any

import triton.language as tl
from triton.compiler.code_generator import CodeGenerator
from triton.runtime import interpreter, jit

from core.evaluation import kernel_source as ks
from core.evaluation.interpreter import IllegalKernelError, UnsupportedError

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
_STRUCTURE = (
    ast.Module, ast.arguments, ast.arg, ast.Load, ast.Store, ast.keyword, ast.operator, ast.unaryop, ast.cmpop,
    ast.boolop, ast.expr_context, ast.comprehension, ast.Slice, ast.FormattedValue, ast.Starred, ast.withitem,
)  # fmt: skip
_NEVER = (ast.ClassDef, ast.Lambda, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Try, ast.Raise, ast.Delete,
          ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFunctionDef, ast.NamedExpr, ast.With)  # fmt: skip


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
            if language or classes or builtin or functions or (isinstance(value, types.ModuleType)
                                                               and value.__name__ in _MODULES):  # fmt: skip
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


class _Checked(ast.NodeTransformer):
    """Refuses what is not Triton's language and replaces chains such as tl.math.exp by one resolved name."""

    def __init__(self, name: str, table: dict[str, Any]) -> None:
        self.name, self.table = name, table
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
        node.args.defaults = [self.visit(part) for part in node.args.defaults]
        node.args.kw_defaults = [part and self.visit(part) for part in node.args.kw_defaults]
        node.body = [self.visit(part) for part in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        assigned = ast.Assign(targets=[node.target], value=node.value)
        return self.visit(ast.copy_location(assigned, node))

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        if len(node.targets) > 1:
            raise _refuse(node, "Triton's language has no chained assignment")
        call = ast.Call(func=ast.Name(id="__to_tensor", ctx=ast.Load()), args=[node.value], keywords=[])
        node.value = ast.copy_location(call, node.value)
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id.startswith("__"):
            raise _refuse(node, f"name {node.id}")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        chain: list[str] = []
        root: ast.AST = node
        while isinstance(root, ast.Attribute):
            chain.append(root.attr)
            root = root.value
        found = self.table.get(root.id) if isinstance(root, ast.Name) else None
        if isinstance(found, types.ModuleType):
            return self._of_module(node, found, list(reversed(chain)), getattr(root, "id", ""))
        if node.attr not in _attributes():
            raise _refuse(node, f"a kernel can't use .{node.attr}")
        node.value = self.visit(node.value)
        return node

    def _of_module(self, node: ast.AST, module: types.ModuleType, chain: list[str], root: str) -> ast.AST:
        value: Any = module
        for index, name in enumerate(chain):
            if isinstance(value, types.ModuleType):
                if (value.__name__, name) not in _vocabulary():
                    if value.__name__ in _MODULES and hasattr(value, name) and not name.startswith("_"):
                        value = getattr(value, name)
                        if not tl.core.is_builtin(value):
                            raise _refuse(node, f"a kernel can't use {root}.{'.'.join(chain)}")
                        continue
                    raise _refuse(node, f"triton.language has no {name}".replace("triton.language", root))
                value = getattr(value, name)  # as patched for the interpreter, not as it was
            elif name in _attributes():
                value = getattr(value, name)
            else:
                raise _refuse(node, f"a kernel can't use {root}.{'.'.join(chain[: index + 1])}")
        if isinstance(value, types.ModuleType):
            raise _refuse(node, f"{root}.{'.'.join(chain)} is a module")
        name = f"__g{len(self.resolved)}"
        self.resolved[name] = value
        return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node)


class CheckedKernel(interpreter.InterpretedFunction):
    """A kernel of the candidate's as the interpreter runs it."""

    def __init__(self, definition: ks.KernelDefinition, function: Any) -> None:
        self.definition = definition
        self.fn = function
        self.kwargs = {}
        self.pre_run_hooks = []
        self.arg_names = list(function.__code__.co_varnames[: function.__code__.co_argcount])

    def rewrite(self) -> Any:
        return self.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


def build(definition: ks.KernelDefinition, kernels: dict[str, CheckedKernel], path: str) -> CheckedKernel:
    """The kernel, ready to run; `kernels` are those that it may call, by key.

    Raises IllegalKernelError for what Triton's language does not have, with the candidate's line.
    """
    try:
        tree = ast.parse(definition.source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise IllegalKernelError(f"the source of {definition.name} does not parse: {error}", definition.line) from None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].name != definition.name:
        raise IllegalKernelError(f"{definition.name} is not one function", definition.line)
    ast.increment_lineno(tree, definition.line - 1)
    table = {name: _global(name, what, kernels, definition) for name, what in definition.globals.items()}
    checker = _Checked(definition.name, table)
    tree.body = [checker.visit(tree.body[0])]
    ast.fix_missing_locations(tree)
    namespace: dict[str, Any] = {
        "__builtins__": _SAFE_BUILTINS,
        "__to_tensor": _to_tensor,
        "getattr": _getattr,
        **{name: value for name, value in table.items() if not isinstance(value, types.ModuleType)},
        **checker.resolved,
    }
    exec(compile(tree, path, "exec"), namespace)
    return CheckedKernel(definition, namespace[definition.name])


def _to_tensor(value: Any) -> Any:
    return interpreter.interpreter_semantic.to_tensor(value, False)


def _getattr(value: Any, name: str, *default: Any) -> Any:
    if name not in _attributes():
        raise IllegalKernelError(f"a kernel can't use .{name}", 0)
    return getattr(value, name, *default)


def _global(name: str, what: Any, kernels: dict[str, CheckedKernel], definition: ks.KernelDefinition) -> Any:
    """What a global name of a kernel means here."""
    if isinstance(what, ks.Module):
        if what.path not in _MODULES:
            raise IllegalKernelError(f"module {what.path} can't be used in a kernel (as {name})", definition.line)
        return importlib.import_module(what.path)
    if isinstance(what, ks.Member):
        if (what.module, what.name) not in _vocabulary():
            raise IllegalKernelError(f"{what.module}.{what.name} can't be used in a kernel", definition.line)
        return getattr(importlib.import_module(what.module), what.name)
    if isinstance(what, ks.Kernel):
        if what.key not in kernels:
            raise IllegalKernelError(f"kernel {name} was not described", definition.line)
        return kernels[what.key]
    if isinstance(what, ks.Dtype):
        kind = getattr(tl, what.name, None)
        if not isinstance(kind, tl.dtype):
            raise UnsupportedError(f"dtype {what.name}")
        return kind
    if isinstance(what, ks.Constant):
        if not what.constexpr:
            text = f"{name} is a plain Python global: a kernel sees only tl.constexpr globals ({name} = tl.constexpr(...))"
            raise IllegalKernelError(text, definition.line)
        return what.value
    if isinstance(what, ks.Builtin):
        if what.name not in _SAFE_BUILTINS and what.name != "getattr":
            raise IllegalKernelError(f"Python's {what.name}() can't be used in a kernel", definition.line)
        return _getattr if what.name == "getattr" else _SAFE_BUILTINS[what.name]
    raise IllegalKernelError(f"{name} can't be used in a kernel", definition.line)
