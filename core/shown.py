"""Values in messages for people, as they stand in a recipe, a row or on a command line: never as Python writes them."""

from collections.abc import Mapping
from datetime import date, datetime, time
from pathlib import PurePath
from typing import Any

SHOWN = 80
"""Characters of a value that are repeated."""


def shown(value: Any, most: int = SHOWN) -> str:
    """The value in at most so many characters: `null`, `true`, `'text'`, `[1, 2]`, `{'key': 1}`."""
    text = _written(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _written(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, int) and abs(value) >= 10**SHOWN:  # Python may refuse to write it out
        return f"a number of more than {SHOWN} digits"
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_written(key)}: {_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(_written, value)) + "]"
    return repr(value)
