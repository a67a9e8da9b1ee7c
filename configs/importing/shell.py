"""The commands that a bash script would run, in order, with what can be known of their words. Nothing is executed.

Assignments are followed from top to bottom. What is set under a condition, or anew in each turn of a loop, is not
guessed: the variable is unknown afterwards, and says so. Functions are read where they stand, as if called there.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from configs.importing.shell_expansion import Variable, Word, expand, joined
from configs.importing.shell_tokens import ShellError, Token, tokens

MAX_COMMANDS = 5_000
_NESTED = 4
"""`bash -c`, `eval` inside each other."""
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL | re.ASCII)
_OPENS = ("if", "while", "until", "for", "case", "select")
_CLOSES = ("fi", "done", "esac")
_PASSED = ("then", "else", "elif", "do", "!", "time", "function")
_DECLARES = ("export", "declare", "typeset", "local", "readonly")
_REDIRECTS = ("<", ">", ">>", "<<<", "&>", "&>>", ">&", "<&", ">|")


@dataclass(frozen=True)
class Command:
    words: tuple[Word, ...]
    line: int


@dataclass
class Script:
    commands: list[Command] = field(default_factory=list)
    sourced: list[Word] = field(default_factory=list)
    """Files that it reads, which are not read here."""


def read(text: str) -> Script:
    """Raises ShellError where the text is no script that bash would read either, or one beyond all measure."""
    script = Script()
    _Reader(script, {}, 0).read(text)
    return script


class _Reader:
    def __init__(self, script: Script, variables: dict[str, Variable], nested: int) -> None:
        self._script, self._variables, self._nested = script, variables, nested
        self._conditions: list[int] = []
        """Lines in which the conditions and loops begin that the reader is inside of."""

    def read(self, text: str) -> None:
        if self._nested > _NESTED:
            return
        chained = False
        for raw, ended_by in _commands(tokens(text)):
            self._command(raw, chained)
            chained = ended_by in ("&&", "||")

    def _command(self, raw: list[Token], chained: bool) -> None:
        while raw and raw[0].kind == "word" and raw[0].text in (*_PASSED, "{", "}", *_OPENS, *_CLOSES):
            first, raw = raw[0], raw[1:]
            if first.text == "{":
                self._conditions.append(first.line if chained else 0)
            elif first.text in _OPENS:
                self._conditions.append(first.line)
                if first.text in ("for", "select"):
                    self._loop(raw, first.line)
                    return
            elif first.text in (*_CLOSES, "}") and self._conditions:
                self._conditions.pop()
        if not raw:
            return
        condition = next((line for line in self._conditions if line), raw[0].line if chained else 0)
        declared = raw[1:] if raw[0].text in _DECLARES and raw[0].kind == "word" else raw
        own = [token for token in declared if token.kind == "list" or _ASSIGNS.match(token.text)]
        if len(own) == len(declared) or declared is not raw:
            for token in own:
                self._assign(token, condition)
            return
        while raw and (raw[0].kind == "list" or _ASSIGNS.match(raw[0].text)):  # NAME=value command: for it alone
            raw = raw[1:]
        self._run(raw, condition)

    def _run(self, raw: list[Token], condition: int) -> None:
        words: list[Word] = []
        for token in raw:
            for part in (token,) if token.kind == "word" else token.items:
                words += expand(part.text, part.line, self._variables)
        name = words[0].text if words else ""
        if name == "unset":
            for word in words[1:]:
                self._variables.pop(word.text, None)
        elif name == ":":
            self._defaults(raw, condition)
        elif name in ("source", ".") and len(words) > 1:
            known = raw[1].kind != "word" or not words[1].unknown
            self._script.sourced.append(words[1] if known else replace(words[1], text=raw[1].text.strip('"')))
        elif name == "eval":
            self._inside(" ".join(word.text for word in words[1:]), words[0].line)
        elif name.rpartition("/")[2] in ("bash", "sh") and (code := _code(words)) is not None:
            self._inside(code, words[0].line)
        elif words:
            if len(self._script.commands) >= MAX_COMMANDS:
                raise ShellError(f"line {words[0].line}: more than {MAX_COMMANDS:,} commands")
            self._script.commands.append(Command(tuple(words), raw[0].line))

    def _inside(self, code: str, line: int) -> None:
        inner = Script()
        try:
            _Reader(inner, self._variables, self._nested + 1).read(code)
        except ShellError:
            return  # its quotes may be those of what we could not expand
        self._script.sourced += [replace(word, line=line) for word in inner.sourced]
        self._script.commands += [
            Command(tuple(replace(word, line=line) for word in command.words), line) for command in inner.commands
        ]

    def _assign(self, token: Token, condition: int) -> None:
        if token.kind == "list":
            name = re.match(r"\w+", token.text)[0]  # type: ignore[index]
            words = [w for item in token.items for w in expand(item.text, item.line, self._variables)]
            made = Variable(tuple(words), is_list=True)
            added = token.text.endswith("+=")
        else:
            name, plus, value = _ASSIGNS.match(token.text).groups()  # type: ignore[union-attr]
            made = Variable((joined(value, token.line, self._variables),))
            added = bool(plus)
        before = self._variables.get(name)
        if condition and (before is None or _said(made) != _said(before)):
            why = f"{name} depends on a condition or loop (line {condition})"
            if not made.is_list:
                made = Variable((_one_of_several(name, made.words[0], before, token.line, why),))
            made = replace(made, words=tuple(replace(word, unknown=word.unknown or why) for word in made.words))
            if not added and before is not None and before.is_list:  # the words of either branch
                made = replace(
                    made, words=tuple(replace(w, unknown=w.unknown or why) for w in before.words) + made.words
                )
        if added and before is not None:
            if before.is_list:
                made = replace(made, words=before.words + made.words, is_list=True)
            else:
                one, more = before.words[0], made.words[0]
                made = Variable((replace(more, text=one.text + more.text, unknown=one.unknown or more.unknown),))
        self._variables[name] = made

    def _defaults(self, raw: list[Token], condition: int) -> None:
        """: "${NAME:=value}" """
        for token in raw[1:]:
            if found := re.fullmatch(r'"?\$\{(\w+):?=(.*)\}"?', token.text, re.DOTALL):
                name = found[1]
                if name not in self._variables:
                    word = joined(found[2], token.line, self._variables)
                    if condition:
                        why = f"{name} depends on a condition or loop (line {condition})"
                        word = Word(f"${{{name}}}", token.line, why)
                    self._variables[name] = Variable((replace(word, default=name),))

    def _loop(self, raw: list[Token], line: int) -> None:
        if not raw or raw[0].kind != "word":
            return
        values = [w for token in raw[2:] for w in expand(token.text, token.line, self._variables)]
        name = raw[0].text
        word = Word(f"${{{name}}}", line, f"{name} takes several values (line {line})")
        self._variables[name] = Variable((values[0] if len(values) == 1 else word,))


def _said(variable: Variable) -> list[tuple[str, str]]:
    return [(word.text, word.unknown) for word in variable.words]


def _one_of_several(name: str, now: Word, before: Variable | None, line: int, why: str) -> Word:
    """A text that a condition changes: unknown, but for what it begins with in any case (X="$X more")."""
    unknown = f"${{{name}}}"
    known = before.words[0].text if before is not None and before.words and not before.is_list else ""
    if not known or not now.text.startswith(f"{known} "):
        return Word(unknown, line, why)
    return Word(known if known.endswith(unknown) else f"{known} {unknown}", line, why, now.default)


def _commands(stream: Iterable[Token]) -> Iterator[tuple[list[Token], str]]:
    """(raw words, the operator that ends them) of each simple command, redirections left out."""
    words: list[Token] = []
    skip = False
    for token in stream:
        if token.kind != "operator":
            if not skip:
                words.append(token)
            skip = False
        elif token.text in _REDIRECTS:
            skip = True
            if words and words[-1].text.isdecimal():  # 2>
                words.pop()
        else:
            if words:
                yield words, token.text
            elif token.text in ("&&", "||"):  # of a bracket
                yield [], token.text
            words, skip = [], False
    if words:
        yield words, "\n"


def _code(words: list[Word]) -> str | None:
    """What `bash -c CODE` runs."""
    for at, word in enumerate(words[1:-1], 1):
        if re.fullmatch(r"-\w*c", word.text):
            return words[at + 1].text
    return None
