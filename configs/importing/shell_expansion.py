"""What bash makes of a raw word: quotes taken off, variables put in, texts split. What only a running script could know
(commands' output, the environment) is not guessed: such a word says why it is unknown.

    expand('"${MODEL}"/${SIZE:-8B}', 3, {"MODEL": Variable((Word("/m", 1),))}) -> [Word("/m/8B", 3, default="SIZE")]
"""

import ast
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from configs.importing.shell_tokens import MAX_DEPTH, ShellError, closing, skipped
from core import parsing

MAX_TEXT, MAX_WORDS = 1 << 20, 20_000
"""Characters and words that one raw word may become; A=$A$A doubles at every line."""
_PLAIN, _PLAIN_QUOTED = re.compile(r"[^\\'\"$`<>]+"), re.compile(r"[^\\$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_PARAMETER = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?", re.ASCII)
_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),  # bash rounds towards 0
}  # fmt: skip


@dataclass(frozen=True)
class Word:
    text: str
    line: int
    unknown: str = ""
    """Why the text is not what the script would pass; the text is then as it is written."""
    default: str = ""
    """The variables of the environment that were taken to be unset."""
    many: bool = False
    """An unknown list: it may be any number of words."""


@dataclass(frozen=True)
class Variable:
    words: tuple[Word, ...]
    is_list: bool = False


Variables = Mapping[str, Variable]


def expand(raw: str, line: int, variables: Variables, depth: int = 0, split: bool = True) -> list[Word]:
    """The words that a raw one becomes: none where an unquoted variable is empty, several where a list stands in it.
    Raises ShellError."""
    if depth > MAX_DEPTH:
        raise ShellError(f"line {line}: variables inside each other, more than {MAX_DEPTH} deep")
    made = _Made(line)
    at = 0
    while at < len(raw):
        if plain := _PLAIN.match(raw, at):
            made.add(plain[0])
            at = plain.end()
            continue
        c, end = raw[at], skipped(raw, at, line)
        if c == "\\":
            made.add(raw[at + 1 : end].replace("\n", ""))
        elif c == "'":
            made.add(raw[at + 1 : end - 1])
        elif c == '"':
            made.add("")
            _quoted(raw[at + 1 : end - 1], line, variables, depth, made)
        elif c == "$" and raw.startswith("'", at + 1):
            made.add(re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), raw[at + 2 : end - 1]))
        elif c in "$`":
            end = _variable_end(raw, at, end)
            made.splice(_substituted(raw[at:end], line, variables, depth), split)
        elif c in "<>" and raw.startswith("(", at + 1):
            end = closing(raw, at + 1, line)
            made.splice([Word(raw[at:end], line, "it is what a command writes")], split=False)
        else:
            made.add(c)
        at = end
    return made.words()


def joined(raw: str, line: int, variables: Variables, depth: int = 0) -> Word:
    """As in an assignment, where nothing is split."""
    return _one(expand(raw, line, variables, depth, split=False), line)


def _one(words: list[Word], line: int) -> Word:
    return Word(
        " ".join(word.text for word in words),
        line,
        next((word.unknown for word in words if word.unknown), ""),
        ", ".join(dict.fromkeys(word.default for word in words if word.default)),
    )


class _Made:
    """Words in the making; the open one is a list of its parts."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._done: list[Word] = []
        self._open: list[Word] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._put(Word(text, self._line))

    def splice(self, words: list[Word], split: bool) -> None:
        """Of several words the first one goes on what stands before, and what comes next on the last one."""
        for number, word in enumerate(words):
            if number:
                self._close()
            if not split or word.many:
                self._put(word)
                continue
            parts = word.text.split()
            if word.text[:1].isspace():
                self._close()
            for index, part in enumerate(parts):
                if index:
                    self._close()
                self._put(replace(word, text=part, unknown=_why_part(word, part)))
            if parts and word.text[-1:].isspace():
                self._close()

    def words(self) -> list[Word]:
        self._close()
        return self._done

    def _put(self, part: Word) -> None:
        self._open.append(part)
        self._size += len(part.text)
        if self._size > MAX_TEXT or len(self._done) > MAX_WORDS:
            raise ShellError(f"line {self._line}: its variables make more than {MAX_TEXT:,} characters")

    def _close(self) -> None:
        if not self._open:
            return
        first = self._open[0]
        if len(self._open) > 1:
            many = self._open[-1].many and not any(part.text for part in self._open[:-1])  # behind "${LIST[@]}"'s quote
            whole = _one(self._open, first.line)
            first = replace(whole, text="".join(part.text for part in self._open), many=many)
        self._done.append(first)
        self._open = []


def _why_part(word: Word, part: str) -> str:
    """Of a word that is split: what stood for something unknown is still written with its $ or `."""
    if part == word.text or not re.search(r"[$`]", word.text):
        return word.unknown
    if not word.unknown or not re.search(r"[$`]", part):
        return ""
    name = re.search(r"\$\{?(\w+)", part)
    return f"{name[1]} is not known" if name and name[1] not in word.unknown else word.unknown


def _quoted(raw: str, line: int, variables: Variables, depth: int, made: _Made) -> None:
    at = 0
    while at < len(raw):
        if plain := _PLAIN_QUOTED.match(raw, at):
            made.add(plain[0])
            at = plain.end()
            continue
        end = skipped(raw, at, line, quoted=True)
        if raw[at] == "\\":
            made.add(raw[at + 1 : end].replace("\n", "") if raw[at + 1 : end] in '$`"\\\n' else raw[at:end])
        elif raw[at] in "$`":
            end = _variable_end(raw, at, end)
            words = _substituted(raw[at:end], line, variables, depth)
            inside = raw[at:end].strip("${}")
            if len(words) > 1 and not inside.endswith(("[@]", "@")):
                words = [_one(words, line)]
            made.splice(words, split=False)
        else:
            made.add(raw[at:end])
        at = end


def _variable_end(raw: str, at: int, end: int) -> int:
    """Behind $NAME, which is no pair of brackets."""
    found = _NAME.match(raw, at + 1) if raw[at] == "$" and end == at + 1 else None
    return found.end() if found else end


def _substituted(raw: str, line: int, variables: Variables, depth: int) -> list[Word]:
    if raw == "$":
        return [Word("$", line)]
    if raw.startswith("$((") and raw.endswith("))"):
        return [_arithmetic(raw, line, variables, depth)]
    if raw[0] == "`" or raw.startswith("$("):
        return [Word(_whole(raw), line, "it is what a command writes")]
    inside = raw[2:-1] if raw.startswith("${") else raw[1:]
    return _parameter(raw, inside, line, variables, depth)


def _parameter(raw: str, inside: str, line: int, variables: Variables, depth: int) -> list[Word]:
    counts = inside.startswith("#") and len(inside) > 1
    found = _PARAMETER.match(inside, 1 if counts else 0)
    if found is None:
        return [Word(_whole(raw), line, "this form of a variable is not read")]
    name, index, rest = found[1], (found[2] or "")[1:-1], inside[found.end() :]
    if name in "@*" and not rest and not counts:  # the script's own arguments: started without any
        return []
    variable = variables.get(name)
    if counts:
        if variable is None or rest or any(word.unknown for word in variable.words):
            return [Word(_whole(raw), line, _why_unset(name))]
        size = len(variable.words) if index in ("@", "*") else len(variable.words[0].text)
        return [Word(str(size), line)]
    words = _values(raw, name, index, variable, line)
    if not rest:
        return words
    if test := re.match(r":?[-=+?]", rest):
        empty = variable is None or (test[0][0] == ":" and all(not w.text and not w.unknown for w in variable.words))
        if test[0][-1] == "+":
            return [] if empty else [joined(rest[test.end() :], line, variables, depth + 1)]
        if not empty:
            return words
        if test[0][-1] == "?":
            return [Word(_whole(raw), line, _why_unset(name))]
        default = joined(rest[test.end() :], line, variables, depth + 1)
        if variable is None:
            default = replace(default, default=", ".join(filter(None, [name, default.default])))
        return [default]
    if len(words) == 1 and not words[0].unknown and (cut := re.match(r"(##?|%%?)(.*)", rest, re.DOTALL)):
        pattern = joined(cut[2], line, variables, depth + 1)
        if not pattern.unknown:
            return [replace(words[0], text=_cut(words[0].text, cut[1], pattern.text))]
    return [Word(_whole(raw), line, "this form of a variable is not read")]


def _values(raw: str, name: str, index: str, variable: Variable | None, line: int) -> list[Word]:
    if variable is None:
        return [Word(_whole(raw), line, _why_unset(name), many=index in ("@", "*"))]
    if index in ("@", "*"):
        return list(variable.words)
    number = int(index) if re.fullmatch(r"\d{1,4}", index) else 0 if not index else None
    if number is None:
        return [Word(_whole(raw), line, "this form of a variable is not read")]
    return [variable.words[number]] if number < len(variable.words) else []


def _whole(raw: str) -> str:
    """What is unknown stays one word, wherever it is split."""
    return "".join(raw.split())


def _why_unset(name: str) -> str:
    return "it is an argument of the script" if name.isdigit() else f"{name} is set nowhere in the script"


def _cut(text: str, how: str, pattern: str) -> str:
    if len(text) > 4096 or len(pattern) > 256:
        return text
    parts = range(len(text) + 1)
    if how[0] == "#":
        fits = [n for n in parts if fnmatchcase(text[:n], pattern)]
        return text[(max(fits) if len(how) == 2 else min(fits)) :] if fits else text
    fits = [n for n in parts if fnmatchcase(text[n:], pattern)]
    return text[: (min(fits) if len(how) == 2 else max(fits))] if fits else text


def _arithmetic(raw: str, line: int, variables: Variables, depth: int) -> Word:
    """$(( ... )) of whole numbers, + - * / and brackets; everything else is unknown."""
    defaults: list[str] = []
    unknown: list[str] = []

    def number(match: re.Match[str]) -> str:
        one = _one(_substituted(f"${{{match[1] or match[2]}}}", line, variables, depth + 1), line)
        defaults.extend(filter(None, [one.default]))
        unknown.extend(filter(None, [one.unknown]))
        return f"({one.text})"

    text = re.sub(r"\$?\{([^{}]*)\}|\$?\b([A-Za-z_]\w*)", number, raw[3:-2])
    if unknown:
        return Word(_whole(raw), line, unknown[0])
    try:
        if not re.fullmatch(r"[\d\s+*/()-]{1,500}", text):
            raise ValueError(text)
        (statement,) = parsing.parse(text.replace("/", "//").strip()).body
        if not isinstance(statement, ast.Expr):
            raise ValueError(text)
        value = _evaluated(statement.value)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return Word(_whole(raw), line, "this arithmetic is not read")
    return Word(str(value), line, "", ", ".join(dict.fromkeys(defaults)))


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        value = _BINARY[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = -_evaluated(node.operand) if isinstance(node.op, ast.USub) else _evaluated(node.operand)
    else:
        raise ValueError("not read")
    if abs(value) >= 1 << 63:
        raise ValueError("beyond bash's numbers")
    return value
