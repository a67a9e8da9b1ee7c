"""Compilers' messages, cut down to what helps to mend the kernel. Text in, text out.

Triton prints the source up to the error and wraps the cause in `repr`; MLIR, LLVM and the assemblers print to the
terminal; nvcc lists every error with its line and a caret. What remains here is one cause: the first error, its line,
and its words without advertising, file names of this machine or source that the reader wrote himself.
"""

import re

import msgspec

MAX_CHARS = 300
_LINE_CHARS = 2000
"""Of a printed line that are looked at: a candidate writes what its compiler quotes, as long as it likes."""
_STATEMENT_CHARS = 200
_REPR = re.compile(r"^([A-Z]\w*(?:Error|Exception|Interrupt|Warning))\((['\"])(.*)\2,?\)$", re.DOTALL)
_GLOBAL = re.compile(r"Cannot access global variable (\w+) from within @jit'ed\s+function")
_DIAGNOSTIC = re.compile(
    r"(?:[^\s:()\"]*/)?([\w.<>-]+\.(?:py|cu|cpp|h|cuh|hpp))[:(](\d+)(?::\d+|\))?:? *"
    r"(?:fatal )?error(?: #\d+(?:-D)?)? ?: *(.*)"
)
_PTXAS = re.compile(r"ptxas (?:error|fatal)\s*: *(.*)")
_CRASH = re.compile(r"(?:LLVM ERROR: .*|Assertion `.*' failed.*|error: .*)")
_PATH = re.compile(r"(?:/[\w.+-]+){2,}/([\w.+-]+)")
_TELL_NOTHING = frozenset(
    ["CompilationError", "UnsupportedLanguageConstruct", "RuntimeError", "AssertionError", "NameError", "ValueError"]
)
_RUN_TIME = re.compile(
    r"`_semantic` argument must be provided"
    r"|cannot convert .* of type <class 'triton\.language\.core\.tensor'> to tensor"
    r"|constexpr\[<class 'triton\.language\.core\.tensor'>\]"
)
_LOCAL_CONSTEXPR = re.compile(
    r"\s+(\w+)\s*(?::\s*(?:\w+\.)*constexpr\s*=\s*([^#]*[^#,\s])\s*(?:#.*)?$|=\s*(?:\w+\.)*constexpr\((.*)\))"
)
"""Of a value, in a line of its own; a parameter's default is followed by a comma, or known."""
_NOISE = re.compile(r"^(?:\d+ errors? detected|At end of source|compilation terminated|ninja:|In file included)")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One error of a compiler."""

    text: str
    file: str = ""
    """Without its folder."""
    line: int = 0


def trim(text: str, limit: int = MAX_CHARS) -> str:
    """One line: white space folded, folders cut off file names, no more than `limit` characters."""
    line = _PATH.sub(r"\1", " ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def triton_message(kind: str, text: str) -> str:
    """A Triton exception of type `kind` with message `text`, on one line; the type is named if it tells something."""
    known = _GLOBAL.search(text)
    if known is not None:
        return (
            f"Cannot access global variable {known[1]} from within @jit'ed function: "
            f"make it tl.constexpr ({known[1]} = tl.constexpr(...)) or pass it as an argument"
        )
    unwrapped = _REPR.match(text.strip())
    if unwrapped is not None:
        kind, text = unwrapped[1], unwrapped[3].replace("\\n", " ").replace("\\'", "'").replace('\\"', '"')
    if kind == "CompileTimeAssertionFailure":
        return trim(f"static_assert failed{': ' if text.strip() else ''}{text}")
    return trim(text if kind in _TELL_NOTHING and text.strip() else f"{kind}: {text}")


def run_time_constant(message: str, line: int, lines: list[str]) -> str:
    """What to say instead where Triton's `message` on `line` of the source means that a constexpr was made of a value
    that is known at run time only: it then computes with it in Python, and speaks of its own insides. Else empty."""
    if not _RUN_TIME.search(message):
        return ""
    made: dict[str, tuple[str, int]] = {}
    for number, text in enumerate(lines[:line], 1):
        found = _LOCAL_CONSTEXPR.match(text[:_STATEMENT_CHARS])
        if found and re.search(r"[A-Za-z_]", value := found[2] or found[3]):
            made[found[1]] = (value, number)
    code = lines[line - 1] if 0 < line <= len(lines) else ""
    used = [name for name in dict.fromkeys(re.findall(r"\w+", code)) if name in made]
    above = [name for name in used if made[name][1] < line] or used
    if len(above) != 1:
        return "a value that is known at run time only is used as a constant"
    value, number = made[above[0]]
    return f"{above[0]} = {trim(value, 30)} (line {number}) is known at run time only"


def printed_errors(output: str) -> list[Message]:
    """Errors that compilers printed, in order: MLIR (`file:line:column: error: text`), gcc, nvcc (`file(line): error:
    text`), ptxas, and the last words of a compiler that crashed."""
    found: list[Message] = []
    for line in output.splitlines():
        line = line[:_LINE_CHARS]
        if match := _DIAGNOSTIC.search(line):
            found.append(Message(text=trim(match[3]), file=match[1], line=int(match[2])))
        elif match := _PTXAS.search(line):
            found.append(Message(text=trim(f"ptxas: {match[1]}")))
        elif not _NOISE.match(line) and (match := _CRASH.search(line)):
            found.append(Message(text=trim(match[0])))
    return found
