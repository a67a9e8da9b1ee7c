"""What is made of a launch's options: settings of ours with the comment of each, and what is left over with its reason.

Nothing is lost: an option that no rule asked for is left over, and so is one whose value is unknown or does not fit.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from configs.importing.options import Option


@dataclass(frozen=True)
class Setting:
    key: str
    """section.key, as overrides name it."""
    value: Any
    note: str
    """Why it is this value, where that is not plain; part of its line's comment."""
    options: tuple[str, ...]
    """Names of theirs that it comes from; none for a default of theirs."""


@dataclass(frozen=True)
class Left:
    what: str
    why: str
    line: int = 0

    def told(self) -> str:
        return f"{self.what}{f' (line {self.line})' if self.line else ''}: {self.why}"


Rules = Sequence[tuple[re.Pattern[str], str]]
"""(which names, why they have no counterpart); the first that fits."""


class Reading:
    """Options by name, asked for one by one; each accessor counts the option as read."""

    def __init__(self, options: Iterable[Option], theirs: str) -> None:
        self.theirs = theirs
        self.settings: dict[str, Setting] = {}
        self.left: list[Left] = []
        self._given: dict[str, Option] = {}
        for option in options:
            self._given.pop(option.name, None)
            self._given[option.name] = option
        self._read: set[str] = set()
        self._told: set[str] = set()
        self._bad: set[str] = set()
        """Options whose value is unknown or no number: nothing is set from them."""

    @property
    def count(self) -> int:
        """Different options of the launch."""
        return len(self._given)

    def has(self, name: str) -> bool:
        """Whether it is given, without reading it."""
        return name in self._given

    def bad(self, *names: str) -> bool:
        """Whether one of them is given with a value that can't be used; they are read by then."""
        return any(name in self._bad for name in names)

    def text(self, name: str, default: str | None = None) -> str | None:
        """Its one value; `default` where it is absent, unknown or has none."""
        option = self._given.get(name)
        if option is None:
            return default
        self._read.add(name)
        if option.unknown:
            self._unusable(name, f"its value is not known: {option.unknown}")
            return default
        if len(option.values) != 1:
            self._unusable(name, f"wanted one value, got {len(option.values)}")
            return default
        if option.values[0] in ("null", "None", ""):
            return default
        return option.values[0]

    def words(self, name: str) -> tuple[str, ...]:
        option = self._given.get(name)
        if option is None or self.unknown(name):
            return ()
        return option.values

    def unknown(self, name: str) -> bool:
        """Whether it is given without a value that is known; it is left over then."""
        option = self._given.get(name)
        if option is not None:
            self._read.add(name)
        if option is None or not option.unknown:
            return False
        self._unusable(name, f"its value is not known: {option.unknown}")
        return True

    def unsure(self, name: str) -> str:
        """Why its value is not known, or nothing."""
        return self._given[name].unknown

    def written(self, name: str) -> str:
        """As it stands there, known or not."""
        option = self._given[name]
        self._read.add(name)
        return " ".join(option.values)

    def number(self, name: str, default: float | None = None) -> float | None:
        return self._parsed(name, default, float, "a number")

    def whole(self, name: str, default: int | None = None) -> int | None:
        return self._parsed(name, default, _whole, "a whole number")

    def _parsed(self, name: str, default: Any, parse: Callable[[str], Any], wanted: str) -> Any:
        if (text := self.text(name)) is None:
            return default
        try:
            value = parse(text)
            if not math.isfinite(value):
                raise ValueError(text)
            return value
        except (ValueError, OverflowError):
            self._unusable(name, f"wanted {wanted}")
            return default

    def flag(self, name: str) -> bool:
        """Of `--name`, which takes no value."""
        if not self.has(name) or self.unknown(name):
            return False
        if self._given[name].values:
            self.leave(name, "it takes no value there")
        return True

    def switch(self, name: str, default: bool) -> bool:
        """Of `name=True`."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            self._unusable(name, "wanted true or false")
            return default
        return text.lower() in ("true", "1", "yes", "on")

    def set(self, key: str, value: Any, *options: str, note: str = "") -> None:
        """A setting of ours from those options; one that isn't given stands for its default there. Nothing is set from
        an option whose value can't be used: it is told then which key to set by hand."""
        given = tuple(name for name in options if self.has(name))
        self._read.update(given)
        if bad := next((name for name in given if name in self._bad), None):
            self._by_hand(bad, key)
            return
        if not given and not note:
            note = f"{self.theirs}'s default"
        taken = ", ".join(dict.fromkeys(d for name in given for d in self._given[name].default.split(", ") if d))
        if taken:
            note = f"{note}; " * bool(note) + f"with the script's default of {taken}"
        self.settings[key] = Setting(key, value, note, given)

    def carry(self, key: str, name: str, read: Callable[[str], Any], note: str = "") -> None:
        """An option whose value is ours as it stands, read by one of the accessors; nothing where it is absent."""
        if (value := read(name)) is not None or self.bad(name):
            self.set(key, value, name, note=note)

    def leave(self, name: str, why: str) -> None:
        """An option that is not carried over, or not as it is; only its first reason is told."""
        option = self._given.get(name)
        if option is None or name in self._told:
            return
        self._read.add(name)
        self._told.add(name)
        self.left.append(Left(option.shown(), why, option.line))

    def _unusable(self, name: str, why: str) -> None:
        self.leave(name, why)
        self._bad.add(name)

    def _by_hand(self, name: str, key: str) -> None:
        shown = self._given[name].shown()
        for at, one in enumerate(self.left):
            if one.what == shown:
                more = f", {key}" if ": set " in one.why else f": set {key}"
                self.left[at] = replace(one, why=one.why + more)

    def refuse_rest(self, rules: Rules) -> None:
        """What nothing asked for, with the reason of the first rule that knows it."""
        for name, option in self._given.items():
            if name not in self._read:
                why = f"its value is not known: {option.unknown}" if option.unknown else ""
                rule = next((reason for pattern, reason in rules if pattern.fullmatch(name)), None)
                self.leave(name, rule or why or "it is not known here; docs/switching.md has what is")

    def sourced_from(self, setting: Setting) -> str:
        """How the options of a setting are named in its comment."""
        return ", ".join(self._given[name].shown() for name in setting.options)

    def mapped(self) -> int:
        """Options that were carried over: read, and not left over."""
        return sum(name in self._read and name not in self._told for name in self._given)


def rules(table: Iterable[tuple[str, str]]) -> Rules:
    """From names (spaces between several, `*` for any ending) to why they have no counterpart."""
    made = []
    for names, why in table:
        pattern = "|".join(re.escape(name).replace(r"\*", ".*") for name in names.split())
        made.append((re.compile(pattern), why))
    return made


def _whole(text: str) -> int:
    value = float(text)
    if value != int(value):
        raise ValueError(text)
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text.strip()) else int(value)
