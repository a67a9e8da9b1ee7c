"""A kernel as plain data: what one process knows of a `@triton.jit` function and another rebuilds without its module.

The host process imports the candidate and describes each kernel that it launches (`kernel_describe`); the interpreting
process and the compile stage make functions of the descriptions (`kernel_load`). Nothing here imports torch or Triton,
so the trusted side can read, check and pass on descriptions. Invariants:

    a definition holds all that the kernel's meaning depends on: its text, the values of the globals and closure
    variables that the text names, the values of its defaults, its annotations in Triton's normal form;
    a value that has no plain form is a `Foreign`: it has a name and a kind, so that the compiler refuses it as it would
    have refused the original, and it can do nothing;
    every kernel has a namespace of its own, so that equal names in two of them never meet.
"""

import ast
import io
import keyword
import tokenize

import msgspec

from core import parsing

MODULES = ("triton", "math")
"""Modules that kernel code may name, with everything below `triton.language`."""
BUILTINS = frozenset(
    ["float", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "print", "range"]
)
"""Python's own functions that Triton's compiler knows."""
MAX_SOURCE_CHARS = 256 * 1024
MAX_DEFINITIONS = 256
MAX_LAUNCHES = 16
"""Different launches that are compiled; of more, so many are drawn."""


class KernelSourceError(ValueError):
    """A definition that no kernel can be rebuilt from."""


class Module(msgspec.Struct, frozen=True, kw_only=True, tag="module"):
    """`triton`, `triton.language`, a module below it, or `math`."""

    path: str


class Member(msgspec.Struct, frozen=True, kw_only=True, tag="member"):
    """A function, class or constant of such a module: `from triton.language import load`."""

    module: str
    name: str


class Constant(msgspec.Struct, frozen=True, kw_only=True, tag="constant"):
    """A number, string or None; without `constexpr` it is a plain Python global, which Triton's compiler refuses."""

    value: int | float | str | bool | None
    constexpr: bool = False


class Kernel(msgspec.Struct, frozen=True, kw_only=True, tag="kernel"):
    """Another jit function, described under `key`."""

    key: str
    constexpr: bool = False


class Dtype(msgspec.Struct, frozen=True, kw_only=True, tag="dtype"):
    """`tl.float32` is "fp32": the name that `str(dtype)` gives."""

    name: str
    constexpr: bool = False


class Builtin(msgspec.Struct, frozen=True, kw_only=True, tag="builtin"):
    """One of Python's own functions."""

    name: str


class Items(msgspec.Struct, frozen=True, kw_only=True, tag="items"):
    """A tuple (a list becomes one)."""

    values: "tuple[Global, ...]"
    constexpr: bool = False


class Foreign(msgspec.Struct, frozen=True, kw_only=True, tag="foreign"):
    """Something that does not travel: `kind` is `module`, `function`, `class` or `object`."""

    kind: str
    text: str
    """Its name, as the compiler would show it."""
    constants: dict[str, int | float] = {}
    """A module's numbers that the kernel names, by dotted path below it: {"pi": 3.14159...} for numpy."""
    usable: bool = False
    """Triton may take it (an aggregate, a named tuple): nothing is known of what the compiler would say."""


Global = Module | Member | Constant | Kernel | Dtype | Builtin | Items | Foreign


class KernelDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """One jit function (or constexpr function) of the candidate."""

    name: str
    source: str
    """From `def` on, dedented, decorators removed, as the candidate wrote it."""
    line: int
    """Line of `def` in the candidate's file, from 1."""
    globals: dict[str, Global] = {}
    """Globals and closure variables that the body names; what is absent is not defined."""
    defaults: dict[str, Global] = {}
    annotations: dict[str, str] = {}
    """Parameter annotations as Triton reads them: "constexpr", "i32", "*fp32"."""
    jit_options: dict[str, bool | tuple[int | str, ...]] = {}
    """noinline, debug, do_not_specialize, do_not_specialize_on_alignment, where given."""
    kind: str = "jit"
    """`jit`, or `constexpr_function`: ordinary Python on compile-time constants."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a kernel was launched: what a GPU would compile it for."""

    kernel: str
    """Key of its definition."""
    types: dict[str, str]
    """Run-time arguments in Triton's words: "*fp32", "i32"; "?list" is a list, which can't be described."""
    constants: dict[str, Global] = {}
    """Compile-time arguments: constexpr parameters, None, and integers equal to 1."""
    aligned: tuple[str, ...] = ()
    """Arguments divisible by 16."""
    options: dict[str, int | bool | str | None] = {}
    """num_warps, num_stages, num_ctas, maxnreg, ..."""


def nesting(value: Global) -> int:
    """How deep tuples lie in each other."""
    return 1 + max(map(nesting, value.values), default=0) if isinstance(value, Items) else 0


def module_allowed(path: str) -> bool:
    """Whether kernel code may name this module."""
    return path in MODULES or path == "triton.language" or path.startswith("triton.language.")


def member_allowed(module: str, name: str) -> bool:
    """Whether kernel code may import this name from this module."""
    if module == "triton":
        return name in ("cdiv", "next_power_of_2")
    return module_allowed(module) and not name.startswith("__")


def module_text(definition: KernelDefinition) -> str:
    """A module that holds the function alone, every line of it at its number in the candidate's file.

    Annotations and defaults are left out: they are values of the definition, and evaluating their text would be running
    the candidate. Raises KernelSourceError when the source is not one function.
    """
    function = parse(definition)
    lines = definition.source.split("\n")
    row, column = _colon(definition.source)
    header = f"def {function.name}({_parameters(function.args)}"
    # The line breaks of the original header, inside the parentheses, keep the body where it was.
    text = header + "\n" * (row - 1) + "):" + lines[row - 1][column + 1 :]
    return "\n" * (max(1, definition.line) - 1) + "\n".join([text, *lines[row:]]) + "\n"


def parse(definition: KernelDefinition) -> ast.FunctionDef:
    """The source's function; raises KernelSourceError when it is not exactly one plain function of that name."""
    if len(definition.source) > MAX_SOURCE_CHARS:
        raise KernelSourceError(f"kernel {definition.name} has {len(definition.source):,} characters")
    try:
        tree = parsing.parse(definition.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise KernelSourceError(f"kernel {definition.name} does not parse: {error}") from error
    function = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or function.name != definition.name:
        raise KernelSourceError(f"kernel {definition.name}: its source is not one function of that name")
    if not function.name.isidentifier() or keyword.iskeyword(function.name):
        raise KernelSourceError(f"kernel {definition.name!r}: not a name")
    return function


def names_read(function: ast.FunctionDef) -> set[str]:
    """Names that the body loads, locals included; annotations and defaults of the function itself are not read."""
    return {
        node.id
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def attribute_paths(function: ast.FunctionDef, name: str) -> set[str]:
    """Dotted paths that the body reads below a name: {"nn", "nn.functional"} for `torch.nn.functional`."""
    found = set()
    for statement in function.body:
        for node in ast.walk(statement):
            parts: list[str] = []
            part: ast.AST = node
            while isinstance(part, ast.Attribute):
                parts.append(part.attr)
                part = part.value
            if parts and isinstance(part, ast.Name) and part.id == name:
                found.add(".".join(reversed(parts)))
    return found


def _parameters(arguments: ast.arguments) -> str:
    parts = [argument.arg for argument in arguments.posonlyargs]
    parts += ["/"] if parts else []
    parts += [argument.arg for argument in arguments.args]
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [argument.arg for argument in arguments.kwonlyargs]
    parts += [f"**{arguments.kwarg.arg}"] if arguments.kwarg is not None else []
    return ", ".join(parts)


def _colon(source: str) -> tuple[int, int]:
    """Row (from 1) and column of the colon that ends the function's header."""
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.OP:
            continue
        if token.string in "([{":
            depth += 1
        elif token.string in ")]}":
            depth -= 1
        elif token.string == ":" and depth == 0:
            return token.start
    raise KernelSourceError("a function without a header")
