"""What expressions of a task's source stand for while its structure is read."""

import ast
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ref:
    """A tensor: the result of a node."""

    index: int


@dataclass(frozen=True)
class Number:
    """A number, string, flag, size: anything that is no tensor."""


@dataclass(frozen=True)
class Library:
    """A dotted name of an imported module, or a builtin."""

    name: str


@dataclass(eq=False)
class Layer:
    """A module of a library, or a container of modules."""

    operator: str
    parts: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Instance:
    """An object of a class that the source defines."""

    definition: ast.ClassDef
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Function:
    """A function, method or lambda of the source, with what its free names mean."""

    definition: ast.FunctionDef | ast.Lambda
    scope: dict[str, Any]
    owner: Instance | None = None


NUMBER = Number()


def refs_in(value: Any) -> list[Ref]:
    """The tensors in a value, containers flattened."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [ref for item in value for ref in refs_in(item)] if isinstance(value, list) else []
