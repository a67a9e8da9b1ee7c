"""A CUDA C++ extension as plain data: what a candidate handed to `load_inline` or `load`, without torch.

Recorded in the process that imports the candidate (`cuda_capture`), compiled in another (`cuda_child`). Also what can
be said of it from its text alone; a text check here refuses only what can never link.
"""

import ast
import re
from typing import Any, NoReturn

import msgspec

from core import parsing

MAX_SOURCE_BYTES = 512 * 1024
MAX_EXTENSIONS = 8
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
"""One that is never closed goes to the end: looking for its end once, not at every beginning, keeps this linear."""
_QUOTED = re.compile(
    r'''#[^\n]*|"""(?:[^"\\]++|\\.|"(?!""))*+(?:""")?|"(?:[^"\\\n]++|\\.)*+"?'''
    r"""|'''(?:[^'\\]++|\\.|'(?!''))*+(?:''')?|'(?:[^'\\\n]++|\\.)*+'?""",
    re.DOTALL,
)
"""Comments and strings of Python. Nothing is read twice (possessive), whatever the text."""
_JIT = re.compile(r"jit(?<!\wjit)\b")
_BUILDER = re.compile(r"cpp_extension(?<!\wcpp_extension)\b")
_LIBRARY = re.compile(r"\b(?:PYBIND11_MODULE|(?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT|_EXPAND)?)\s*\(\s*(\w+)\s*,\s*(\w+)")
_DEFINED = re.compile(r"\b(\w+)\s*\.\s*def\s*\(\s*(?:R\"\w*\(|\")\s*(?:\w+::)?(\w+)")
_ALLOWED_FLAG = re.compile(
    r"-O[0-3]|-std=c\+\+(17|20|23)|--?use_fast_math|-lineinfo|--expt-(relaxed-constexpr|extended-lambda)"
    r"|--extended-lambda|-U\w+|-D\w+(=[\w.+-]*)?|--?maxrregcount=?\d+|--?(ftz|fmad|prec-div|prec-sqrt)=(true|false)"
    r"|--default-stream=(legacy|null|per-thread)|-march=native|-ffast-math|-funroll-loops|-fopenmp|-g|-w|-Wall|-rdc=false"
)


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `load_inline` (or `load`, its files read)."""

    name: str
    cpp_sources: tuple[str, ...] = ()
    cuda_sources: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    """Names to bind; empty where the C++ source binds by itself."""
    cflags: tuple[str, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    headers: bool = True
    """torch's headers are put in front, as `load_inline` does unless told otherwise."""
    python_module: bool = True
    """It is imported; otherwise loaded for the operators that it registers with torch."""


class LibraryPath(str):
    """What load_inline and load return with is_python_module=False. torch gives a plain string, whose own message on
    what is no function of it tells nothing."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"'str' object has no attribute {name!r}: with is_python_module=False the library's path is returned; "
            f"leave it out, or call what TORCH_LIBRARY registers, torch.ops.NAMESPACE.{name}"
        )


def uses_extensions(source: str) -> bool:
    """Whether a candidate names torch's extension builder, by import or by attribute."""
    for node in ast.walk(parsing.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [node.attr] if isinstance(node, ast.Attribute) else []
        if any("cpp_extension" in name.split(".") for name in names):
            return True
    return False


def is_cuda(source: str) -> bool:
    """Whether a candidate clearly is CUDA C++: it builds an extension or holds a kernel's text, and nothing of
    Triton's."""
    names, texts, builds = _said(source)
    return "jit" not in names and (builds or any("__global__" in text for text in texts))


def is_triton(source: str) -> bool:
    """Whether a candidate clearly is Triton: it names Triton's `jit` and no extension builder.

    By words outside comments and strings, not by its tree: the gateway asks this of every request on its event loop,
    where the tree of 15 KB takes some 30 ms and that of a megabyte many seconds. One that does not parse may be Triton.
    """
    if "jit" not in source:
        return False
    words = _QUOTED.sub(" ", source)
    return bool(_JIT.search(words)) and not _BUILDER.search(words)


def _said(source: str) -> tuple[set[Any], list[str], bool]:
    """Names and strings of a source, and whether it builds an extension; nothing of one that does not parse."""
    try:
        nodes = list(ast.walk(parsing.parse(source)))
        builds = uses_extensions(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), [], False
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {getattr(node, "attr", getattr(node, "id", None)) for node in nodes}, texts, builds


def allowed_flags(flags: tuple[str, ...]) -> list[str]:
    """Flags that change what the compiler accepts or makes; others (plugins, files, architectures) are left out."""
    kept = []
    for flag, following in zip(flags, [*flags[1:], ""], strict=False):
        if _ALLOWED_FLAG.fullmatch(flag):
            kept.append(flag)
        elif flag in ("-maxrregcount", "--maxrregcount") and following.isdigit():
            kept.append(f"{flag}={following}")
    return kept


def without_comments(text: str) -> str:
    """The text with comments blanked; what stands in strings is taken for code."""
    return _COMMENT.sub(" ", text)


def unlinkable(extension: Extension) -> str:
    """Why the extension can't be built or imported whatever its code does, or nothing."""
    cpp = without_comments("\n".join(extension.cpp_sources))
    cuda = without_comments("\n".join(extension.cuda_sources))
    for name in extension.functions:
        if not re.search(rf"\b{re.escape(name)}\b", cpp):
            if re.search(r"^[ \t]*#[ \t]*(include|define)", cpp, re.MULTILINE):
                continue  # it may come from a macro
            return f"{name} is in `functions`, but cpp_sources does not declare it"
        if "{" not in cpp and "#" not in cpp and not re.search(rf"\b{re.escape(name)}\b", cuda) and "##" not in cuda:
            return f"{name} is declared in cpp_sources, but cuda_sources does not define it"
    return ""


def operators(extension: Extension) -> list[tuple[str, str]]:
    """(namespace, name) of what the extension registers with torch by TORCH_LIBRARY, as far as its text shows it."""
    text = without_comments("\n".join(extension.cpp_sources + extension.cuda_sources))
    blocks = list(_LIBRARY.finditer(text))
    found: dict[tuple[str, str], None] = {}
    for block, end in zip(blocks, [*(b.start() for b in blocks[1:]), len(text)], strict=False):
        if "TORCH_LIBRARY" in block[0]:
            namespace = extension.name if block[1] == "TORCH_EXTENSION_NAME" else block[1]
            for defined in _DEFINED.finditer(text, block.end(), end):
                if defined[1] == block[2]:
                    found[namespace, defined[2]] = None
    return list(found)


def only_declares(text: str) -> bool:
    """Whether C++ source has no bodies: nothing in it can be wrong that its own text does not show."""
    plain = without_comments(text)
    return "{" not in plain and not re.search(r"^[ \t]*#[ \t]*define", plain, re.MULTILINE)
