"""What is wrong in a config, in words of ours: key, what is wanted, what was got, the nearest choice.

pydantic says where a value does not fit; what would fit is read from the field itself, so that every field of every
section has its words. A field whose pattern needs them says them by `json_schema_extra={"wanted": ...}`.
"""

import difflib
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from core.shown import shown

KEYS = 8
"""Keys of a table that are named where something else stands in its place."""
_PLAIN = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "a multiple of"}


def faults(kind: type[BaseModel], errors: Iterable[Any]) -> list[str]:
    """One part of a line for each field that does not fit, however many alternatives of it pydantic tried."""
    found: dict[str, str] = {}
    for error in errors:
        where, annotation, limits, extra = _field(kind, error["loc"])
        found.setdefault(where, _fault(error, where, annotation, limits, extra))
    return list(found.values())


def _fault(error: Any, where: str, annotation: Any, limits: list[Any], extra: dict[str, Any]) -> str:
    at = f"{where}: " if where else ""  # nowhere: several keys do not fit together
    if error["type"] == "value_error":  # of our own validators
        return f"{at}{error['ctx']['error']}"
    want = extra.get("wanted") or wanted(annotation, limits)
    if error["type"] == "finite_number":
        want = want.replace("a number", "a finite number", 1)
    if error["type"] == "missing":
        return f"{at}is not set; wanted {want}"
    return f"{at}wanted {want}, got {shown(error['input'])}{_nearest(annotation, error['input'])}"


def wanted(annotation: Any, limits: Iterable[Any] = ()) -> str:
    """What a field takes: `a whole number, at least 1`."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return wanted(inside[0], [*inside[1:], *limits])
    if origin in (Union, UnionType):
        parts = [wanted(part, limits) for part in inside if part is not type(None)]
        return " or ".join(parts) + ("; or leave it out" if type(None) in inside else "")
    if origin is Literal:
        *first, last = (repr(choice) for choice in inside)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is tuple:
        if Ellipsis in inside:
            return f"a list, of which each is {wanted(inside[0])}"
        return f"a list of {len(inside)}: {' and '.join(wanted(part) for part in inside)}"
    if origin is dict or annotation is dict:
        return "a table"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        first, more = list(annotation.model_fields)[:KEYS], len(annotation.model_fields) > KEYS
        return f"a table of {', '.join(first)}{', ...' if more else ''}"
    return ", ".join([_PLAIN.get(annotation, "another value"), *_bounds(limits)])


def _bounds(limits: Iterable[Any]) -> list[str]:
    told: list[str] = []
    for limit in limits:
        if isinstance(limit, FieldInfo):  # of an element: Annotated[float, Field(ge=0)]
            told += _bounds(limit.metadata)
        told += [f"{word} {_number(getattr(limit, name))}" for name, word in _BOUNDS.items() if hasattr(limit, name)]
    return told


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"


def _field(kind: Any, loc: tuple[Any, ...]) -> tuple[str, Any, list[Any], dict[str, Any]]:
    """(dotted name, type, limits, extra) of the field that `loc` leads to. pydantic ends it with the names of the
    alternatives that it tried, which are nobody's keys."""
    where, annotation, limits, extra = "", kind, [], {}  # type: ignore[var-annotated]
    for part in loc:
        if isinstance(part, int):
            inside = get_args(_only(annotation))
            where, limits, extra = f"{where}[{part}]", [], {}
            annotation = inside[0] if Ellipsis in inside else inside[part] if part < len(inside) else None
            continue
        section = _only(annotation)
        if not (isinstance(section, type) and issubclass(section, BaseModel) and part in section.model_fields):
            break
        field: FieldInfo = section.model_fields[part]
        where = f"{where}.{part}" if where else part
        annotation, limits = field.annotation, field.metadata
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return where, annotation, limits, extra


def _only(annotation: Any) -> Any:
    """The one type that may be absent, without its absence; the type under its limits."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return parts[0] if len(parts) == 1 else annotation
    return annotation


def _nearest(annotation: Any, got: Any) -> str:
    if get_origin(annotation) is Literal and isinstance(got, str):
        near = difflib.get_close_matches(got, [str(choice) for choice in get_args(annotation)], 1, 0.6)
        return f"; did you mean {near[0]!r}?" if near else ""
    return ""
