"""Options of a launch, in the two forms that trainers take: `--name value ...` (slime, TritonForge) and hydra's
`name=value` (verl), of which a script's last one for a name counts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.importing.shell_expansion import Word

MAX_DEPTH = 30
"""Tables of a YAML file inside each other."""
SHOWN = 60
"""Characters of an option that are repeated in a comment."""
_SECRET = re.compile(r"wandb[-_]key|(api|access)[-_.]?key|secret|passw|(auth|access|api|hf)[-_.]?token", re.IGNORECASE)
_HYDRA = re.compile(r"([+~]{0,2})([A-Za-z_][\w@/-]*(?:\.[\w-]+)*)(=(.*))?$", re.DOTALL)
_FLAG = re.compile(r"--[A-Za-z][\w.-]*")


@dataclass(frozen=True)
class Option:
    name: str
    """Without its dashes or plus signs."""
    values: tuple[str, ...]
    line: int
    """0 where it has none (of a YAML file)."""
    unknown: str = ""
    """Why its value is not known."""
    default: str = ""
    """Variables of the environment that were taken to be unset."""
    hydra: bool = False

    def shown(self) -> str:
        """As it is written, in one line of a bounded length; nothing that is secret."""
        sign = "=" if self.hydra else " "
        value = "..." if _SECRET.search(self.name) and self.values else " ".join(self.values)
        text = f"{self.name}{sign}{value}" if self.values else self.name
        text = printable(text if self.hydra or text.startswith("$") else f"--{text}")
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def printable(text: str) -> str:
    """For a comment of TOML and a line on stderr."""
    return re.sub(r"\s+", " ", "".join(c if c.isprintable() or c.isspace() else "?" for c in text)).strip()


def flags(words: Iterable[Word]) -> list[Option]:
    """Of `--name value ...` and `--name=value`; an unknown list (`${MODEL_ARGS[@]}`) is an option of its own."""
    found: list[Option] = []
    for word in words:
        if word.many:
            found.append(Option(word.text, (), word.line, word.unknown))
        elif match := _FLAG.match(word.text):
            name, rest = match[0][2:].replace("_", "-"), word.text[match.end() :]
            values = (rest[1:],) if rest.startswith("=") else ()
            found.append(Option(name, values, word.line, word.unknown, word.default))
        elif found and not found[-1].name.startswith("$"):
            last = found[-1]
            found[-1] = Option(
                last.name, (*last.values, word.text), last.line, last.unknown or word.unknown,
                ", ".join(filter(None, [last.default, word.default])),
            )  # fmt: skip
        else:
            found.append(Option(word.text, (), word.line, word.unknown or "it belongs to no option"))
    return found


def overrides(words: Iterable[Word]) -> list[Option]:
    """Of hydra's `name=value`, `+name=value`, `~name`."""
    found = []
    for word in words:
        match = _HYDRA.match(word.text)
        if word.many or match is None or (match[3] is None and match[1] != "~"):
            if word.text.startswith("--"):
                found += flags([word])
            elif word.unknown:
                found.append(Option(word.text, (), word.line, word.unknown, hydra=True))
            continue
        value = () if match[4] is None else (_bare(match[4]),)
        found.append(Option(match[2], value, word.line, word.unknown, word.default, hydra=True))
    return found


def flattened(tree: Mapping[Any, Any], most: int) -> list[Option]:
    """Of a YAML file's tables, as overrides would name them. Raises ValueError beyond `most` options."""
    found: list[Option] = []
    waiting: list[tuple[str, Any]] = [("", tree)]
    while waiting:
        name, value = waiting.pop()
        if name.count(".") > MAX_DEPTH:
            raise ValueError(f"tables inside each other, more than {MAX_DEPTH} deep")
        if isinstance(value, Mapping) and value:
            waiting += [(f"{name}.{key}" if name else str(key), inner) for key, inner in reversed(list(value.items()))]
        elif name:
            text = _text(value)
            why = "it is taken from another key of theirs" if "${" in text else ""
            found.append(Option(name, (text,), 0, why, hydra=True))
        if len(found) + len(waiting) > most:
            raise ValueError(f"more than {most:,} options")
    return found


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [_text(item) if isinstance(item, str | int | float | None) else "..." for item in value[:20]]
        return f"[{', '.join(items)}]"  # an alias may make a list of lists endless
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bare(text: str) -> str:
    """Without the quotes of hydra's own."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
