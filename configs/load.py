"""Recipes from TOML files: `extends`, overrides by dotted name, and one clear line for everything that is wrong.

    load("configs/demo.toml", ["run.steps=4", "sampler.group_size=4"]) -> RunConfig

A recipe may start with `extends = "other.toml"` (relative to itself); its own values win. Overrides win over files and
are read as TOML values (`learner.lr=1e-5`, `run.name=test`: bare words are strings).
"""

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from configs.schema import RunConfig, SftConfig
from configs.words import faults
from core import plain_files
from core.record.files import RecordError
from core.run_folder import MAX_BYTES, WHAT_TO_DO, read_object
from core.shown import shown

T = TypeVar("T", bound=BaseModel)
FAULTS_TOLD = 4
NAMES_TOLD = 8
ANOTHER_KIND = 3
"""Keys that only the other kind of recipe has: from so many on it is one."""
_HERE = Path(__file__).resolve().parent


class ConfigError(ValueError):
    """A config that can't be used; the text is one line that says what was got, what was wanted, what to do."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The resolved config of a run. Raises ConfigError."""
    return _load(RunConfig, path, overrides)


def load_standing(path: str | Path) -> RunConfig:
    """The config that a run folder holds, for who is about to go on there. Raises ConfigError with what to do."""
    try:
        return load(path)
    except ConfigError as error:
        known = str(error)
        raise ConfigError(known if known.endswith(WHAT_TO_DO) else f"{known}; {WHAT_TO_DO}") from None


def load_sft(path: str | Path, overrides: Sequence[str] = ()) -> SftConfig:
    """The resolved config of a supervised phase. Raises ConfigError."""
    return _load(SftConfig, path, overrides)


def _load(kind: type[T], path: str | Path, overrides: Sequence[str]) -> T:
    values = _read(Path(path), seen=())
    for text in overrides:
        _override(values, text)
    if unknown := list(_unknown(kind, values, "")):
        raise ConfigError(f"{path}: unknown key{'s' if len(unknown) > 1 else ''} {_some(_alike(unknown))}")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_some(faults(kind, error.errors()))}") from None


def _alike(unknown: Iterable[tuple[str, str]]) -> list[str]:
    """Keys that have the same hint, such as all strange ones of a section, are told together."""
    names: dict[str, list[str]] = {}
    for name, hint in unknown:
        names.setdefault(hint, []).append(name)
    return [f"{_names(found)}{hint}" for hint, found in names.items()]


def _names(found: list[str]) -> str:
    more = f" (and {len(found) - NAMES_TOLD} more)" if len(found) > NAMES_TOLD else ""
    return ", ".join(found[:NAMES_TOLD]) + more


def _some(faults: list[str]) -> str:
    """All that is wrong, in one line of a length that is still read."""
    more = f" (and {len(faults) - FAULTS_TOLD} more)" if len(faults) > FAULTS_TOLD else ""
    return "; also ".join(faults[:FAULTS_TOLD]).replace("?; also", "? Also") + more


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if (found := plain_files.kind(path)) == plain_files.NOTHING:
        raise ConfigError(f"{path}: there is no such config{_nearby(path)}")
    if found != plain_files.FILE:
        raise ConfigError(f"{path}: {found}; name a .toml file")
    if path.resolve() in seen:
        raise ConfigError(f"{path} extends itself: {' -> '.join(str(p.name) for p in (*seen, path))}")
    try:
        if path.suffix == ".json":  # a resolved config, as a run folder holds it
            resolved = read_object(path)
            _shipped(path, resolved)
            return resolved
        values = tomllib.loads(plain_files.read(path, str(path), MAX_BYTES).decode())
    except (RecordError, plain_files.NotPlain) as error:
        raise ConfigError(str(error)) from None
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, or of a number beyond all bounds
        raise ConfigError(f"{path}: not valid TOML: {_unread(error)}") from None
    _shipped(path, values)
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends must name one file, got {shown(base)}")
    return _merge(_read(path.parent / base, (*seen, path.resolve())), values)


def _unread(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start})"
    return str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it holds a number of too many digits"


def _shipped(path: Path, values: dict[str, Any]) -> None:
    """The recipes that come with the code, and the configs of runs of theirs, name their policy as it is seen from the
    code's folder; from elsewhere, or extended by a recipe elsewhere, it is found there too."""
    model = values.get("model")
    if not isinstance(model, dict) or not isinstance(named := model.get("path"), str):
        return
    if path.resolve().parent == _HERE or path.suffix == ".json":
        model["path"] = shipped_policy(named)


def shipped_policy(named: str) -> str:
    """A folder of the code's own that was named as it is seen from there, as it is seen from here."""
    return str(_HERE.parent / named) if not Path(named).exists() and (_HERE.parent / named).is_dir() else named


def _nearby(path: Path) -> str:
    known = sorted(p.name for p in _HERE.glob("*.toml"))
    near = difflib.get_close_matches(path.name, known, 1, 0.5)
    folder = Path("configs") if Path("configs").resolve() == _HERE else _HERE
    return f"; did you mean {folder / near[0]}?" if near else f"; recipes here: {', '.join(known)}"


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _override(values: dict[str, Any], text: str) -> None:
    name, sep, raw = text.partition("=")
    name = name.strip()
    if not sep or not name:
        raise ConfigError(f"an override is written section.key=value, got {text!r}")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"override {shown(text)}: {name} can't be read: {_unread(error)}") from None
    place = values
    *sections, key = name.split(".")
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise ConfigError(f"override {text!r}: {section!r} is a value, not a section")
    place[key] = value


def _unknown(kind: type[BaseModel], values: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """(key, hint) of keys that no section has; the hint is the nearest one: pydantic alone would only say 'extra'."""
    fields = kind.model_fields
    mistaken = "" if prefix else _mistaken(kind, values)
    for key, value in values.items():
        if key not in fields:
            places = _all_keys(RunConfig if kind is RunConfig or prefix else kind)
            near = difflib.get_close_matches(key, list(fields), 1, 0.6)
            if mistaken:
                hint = f"{mistaken}; known here: {', '.join(sorted(fields))}"
            elif near:
                hint = f"; did you mean {prefix}{near[0]}?"
            elif elsewhere := [p for p in places if p.rsplit(".", 1)[-1] == key]:
                hint = f"; did you mean {elsewhere[0]}?"
            else:
                hint = f"; known here: {', '.join(sorted(fields))}"
            yield f"{prefix}{key}", hint
            continue
        inner = fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value, dict):
            yield from _unknown(inner, value, f"{prefix}{key}.")
        elif isinstance(value, list):
            element = _element(inner)
            for i, item in enumerate(value):
                if element is not None and isinstance(item, dict):
                    yield from _unknown(element, item, f"{prefix}{key}[{i}].")


def _mistaken(kind: type[BaseModel], values: dict[str, Any]) -> str:
    """Where this is a recipe of the other kind: no key of it was meant to be another."""
    other, what = (RunConfig, "run's recipe, for `up`") if kind is SftConfig else (SftConfig, "recipe for `sft`")
    strange = [key for key in values if key not in kind.model_fields and key in other.model_fields]
    return f": this is a {what}" if len(strange) >= ANOTHER_KIND else ""


def _element(annotation: Any) -> type[BaseModel] | None:
    """The section that the list of a field is made of: TaskSource of `tuple[TaskSource, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _element(part)) is not None), None)


def _all_keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for key, field in kind.model_fields.items():
        names.append(prefix + key)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _all_keys(field.annotation, f"{prefix}{key}.")
    return names
