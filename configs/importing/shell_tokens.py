"""A bash script as tokens: words with their quotes still on, lists `NAME=( ... )`, operators. Nothing is expanded here.

shlex is of no use for it: it takes the quotes off, and then nobody can tell `'$HOME'`, which is a text, from `$HOME`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_DEPTH = 30
"""Substitutions inside each other; people write three."""
_OPERATORS = (
    *("<<<", "&>>", "<<-", "&&", "||", ";;", "|&", ">>", "<<", ">&", "<&", "&>", ">|"),
    *("\n", ";", "&", "|", "(", ")", "<", ">"),
)
_ENDS_WORD = set(" \t\n;&|()<>")
_LIST_BEGINS = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=$")


class ShellError(ValueError):
    """A script that can't be read; the text says where and why."""


@dataclass(frozen=True)
class Token:
    text: str
    """A raw word, an operator, or what stands before a list's bracket (`ARGS=`, `ARGS+=`)."""
    line: int
    kind: str = "word"
    """word, operator or list."""
    items: tuple["Token", ...] = ()
    """Of a list: its raw words."""


def tokens(text: str) -> Iterator[Token]:
    """All tokens, comments and here-documents left out. Raises ShellError."""
    return _Scanner(text).tokens()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1
        self._documents: list[tuple[str, bool]] = []
        """Ends of here-documents that begin behind this line, and whether tabs may stand before them."""

    def tokens(self) -> Iterator[Token]:
        wanted: list[bool] = []  # a here-document's end is the next word
        while (token := self._next()) is not None:
            if wanted and token.kind == "word":
                self._documents.append((re.sub(r"['\"\\]", "", token.text), wanted.pop()))
                continue
            if token.kind == "operator" and token.text in ("<<", "<<-"):
                wanted.append(token.text == "<<-")
                continue
            yield token
            if token.text == "\n" and token.kind == "operator":
                self._skip_documents()

    def _next(self) -> Token | None:
        text = self._text
        while self._at < len(text):
            c = text[self._at]
            if c in " \t\r":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
                self._line += 1
            elif c == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif c in "<>" and text.startswith("(", self._at + 1):  # <( ... ): a word that a command writes
                return self._word()
            elif operator := next((o for o in _OPERATORS if text.startswith(o, self._at)), None):
                token = Token(operator, self._line, "operator")
                self._at += len(operator)
                self._line += operator == "\n"
                return token
            else:
                return self._word()
        return None

    def _word(self) -> Token:
        text, start, line = self._text, self._at, self._line
        at = start
        if text[at] in "<>":
            at = closing(text, at + 1, line)
        while at < len(text) and text[at] not in _ENDS_WORD:
            at = skipped(text, at, line)
        if text.startswith("(", at) and _LIST_BEGINS.match(text, start, at):
            self._at = at + 1
            return Token(text[start:at], line, "list", tuple(self._items(line)))
        self._at = at
        self._line += text.count("\n", start, at)
        return Token(text[start:at], line)

    def _items(self, line: int) -> Iterator[Token]:
        while (token := self._next()) is not None:
            if token.kind == "operator" and token.text == ")":
                return
            if token.kind != "operator":
                yield token
        raise ShellError(f"line {line}: a list that is opened with ( is never closed")

    def _skip_documents(self) -> None:
        for end, tabs in self._documents:
            while self._at < len(self._text):
                stop = self._text.find("\n", self._at)
                stop = len(self._text) if stop < 0 else stop
                line = self._text[self._at : stop]
                self._at = min(stop + 1, len(self._text))
                self._line += 1
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self._documents = []


def skipped(text: str, at: int, line: int, depth: int = 0, quoted: bool = False) -> int:
    """Where the next part of a word begins: behind a character, a quoted text or a substitution."""
    if depth > MAX_DEPTH:
        raise ShellError(f"line {line}: substitutions inside each other, more than {MAX_DEPTH} deep")
    c = text[at]
    if c == "\\":
        return min(at + 2, len(text))
    if c == "'" and not quoted:
        return _behind(text, "'", at + 1, line)
    if c == '"' and not quoted:
        at += 1
        while at < len(text) and text[at] != '"':
            at = skipped(text, at, line, depth + 1, quoted=True)
        return _behind(text, '"', at, line)
    if c == "`":
        at += 1
        while at < len(text) and text[at] != "`":
            at += 2 if text[at] == "\\" else 1
        return _behind(text, "`", at, line)
    if c == "$" and text.startswith("(", at + 1):
        return closing(text, at + 1, line, depth)
    if c == "$" and text.startswith("{", at + 1):
        at += 2
        while at < len(text) and text[at] != "}":
            at = skipped(text, at, line, depth + 1, quoted)
        return _behind(text, "}", at, line)
    if c == "$" and text.startswith("'", at + 1) and not quoted:
        at += 2
        while at < len(text) and text[at] != "'":
            at += 2 if text[at] == "\\" else 1
        return _behind(text, "'", at, line)
    return at + 1


def closing(text: str, at: int, line: int, depth: int = 0) -> int:
    """Behind the bracket that closes the one at `at`: of $( ... ), $(( ... )) and <( ... )."""
    open_ones = 0
    while at < len(text):
        if text[at] == "(":
            open_ones, at = open_ones + 1, at + 1
        elif text[at] == ")":
            open_ones, at = open_ones - 1, at + 1
            if not open_ones:
                return at
        else:
            at = skipped(text, at, line, depth + 1)
    raise ShellError(f"line {line}: a ( is never closed")


def _behind(text: str, end: str, at: int, line: int) -> int:
    stop = text.find(end, at)
    if stop < 0:
        raise ShellError(f"line {line}: a {end} is missing: what was opened there is never closed")
    return stop + 1
