"""Settings as a TOML recipe: what a line comes from stands in its comment, what was left over at the end."""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from configs.importing.options import printable
from configs.importing.reading import Left, Reading, Setting
from configs.schema import RunConfig
from configs.words import faults
from core.shown import shown

WIDTH = 120
ABSENT = "CHANGE/ME"
"""model.path where the script names none; without a path a recipe does not load."""


def settle(r: Reading) -> None:
    """Take out what our schema refuses, alone or beside other settings, so that the recipe loads."""
    if "model.path" not in r.settings:
        r.set("model.path", ABSENT, note="the script names no model: write its folder here")
    while errors := _errors(r.settings):
        key = next((key for error in errors if (key := _field_of(error, r)) is not None), None)
        why = faults(RunConfig, errors)[0]
        if key is None:
            named = [key for key in r.settings if key.rsplit(".", 1)[-1] in why]
            named.sort(key=lambda key: why.index(key.rsplit(".", 1)[-1]))
            every = [*named, *(key for key in reversed(r.settings) if key not in named)]
            without = [{k: s for k, s in r.settings.items() if k != key} for key in every]
            key = next((key for key, rest in zip(every, without, strict=True) if _errors(rest) != errors), every[0])
        _refuse(r, key, why)


def _refuse(r: Reading, key: str, why: str) -> None:
    setting = r.settings.pop(key)
    why = f"{key} = {shown(setting.value)} is refused: {why}"
    for name in setting.options:
        r.leave(name, why)
    if not setting.options:
        r.left.append(Left(f"{r.theirs}'s default", why))
    if key == "model.path":
        r.set(key, ABSENT, note="the script's can't be used: write its folder here")


def _errors(settings: Mapping[str, Setting]) -> list[Any]:
    try:
        RunConfig.model_validate(_tree(settings))
    except ValidationError as error:
        return [
            {k: e[k] for k in ("type", "loc", "input", "ctx") if k in e} | {"msg": e["msg"]} for e in error.errors()
        ]
    return []


def _field_of(error: Any, r: Reading) -> str | None:
    parts = [str(part) for part in error["loc"]]
    return next((key for n in range(len(parts), 1, -1) if (key := ".".join(parts[:n])) in r.settings), None)


def _tree(settings: Mapping[str, Setting]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, setting in settings.items():
        *sections, leaf = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = setting.value
    return tree


def written(r: Reading, heading: list[str], left: list[Left]) -> str:
    """The whole recipe, ending in a newline."""
    lines = [f"# {printable(line)}" for line in heading]
    for table, keys in _tables(RunConfig, ""):
        present = [key for key in keys if key in r.settings]
        if present:
            lines += ["", f"[{table}]"]
            for key in present:
                lines += _lines(r, r.settings[key])
    if left:
        lines += ["", f"# Left over, {len(left)}: what the script says and this recipe does not."]
        lines += [f"# {printable(one.told())}" for one in left]
    return "\n".join(lines) + "\n"


def _lines(r: Reading, setting: Setting) -> list[str]:
    text = f"{setting.key.rsplit('.', 1)[-1]} = {_toml(setting.value)}"
    comment = printable(": ".join(part for part in (r.sourced_from(setting), setting.note) if part))
    if not comment:
        return [text]
    both = f"{text}  # {comment}"
    return [both] if len(both) <= WIDTH else [f"# {comment}", text]


def _tables(kind: type[BaseModel], name: str) -> list[tuple[str, list[str]]]:
    """(table, dotted names of its keys) in the schema's order; a table inside another comes after it."""
    here: list[str] = []
    inner: list[tuple[str, list[str]]] = []
    for key, field in kind.model_fields.items():
        whole = f"{name}.{key}" if name else key
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner += _tables(field.annotation, whole)
        else:
            here.append(whole)
    return [(name, here), *inner] if here else inner


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


def _number(value: float) -> str:
    """The shortest text that is the same number, and a float to TOML as well: 1e-06 is one, 1 is not."""
    if not math.isfinite(value):
        return repr(value)
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text
