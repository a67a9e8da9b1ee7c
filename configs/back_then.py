"""A run's settings as they were at a moment of it: what its `other_settings` facts tell, undone.

then = BackThen(config, [(at, [("learner.lr", "0.5", "0.1")]), ...])
then.at(1764424849.0).learner.lr
"""

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from configs.differences import Change
from configs.load import ConfigError
from configs.schema import RunConfig
from core.parsing import parse

_LEARNERS = ("learner.", "run.steps")
"""The others of those that decide what the learner computes are the run's identity, and never change."""
_WORDS = {"null": None, "true": True, "false": False}


class BackThen:
    """The settings of the learner; all others are those of `config`."""

    def __init__(self, config: RunConfig, told: Iterable[tuple[float, Sequence[Change]]]) -> None:
        """told: (seconds since the epoch, changes from then on), in order."""
        self._config = config
        self._values: dict[str, list[tuple[float, str, str]]] = {}
        for at, changes in told:
            for name, before, now in changes:
                if name.startswith(_LEARNERS):
                    self._values.setdefault(name, []).append((at, before, now))

    def at(self, moment: float) -> RunConfig:
        """Raises ConfigError for a value of a release that had other settings."""
        values = self._config.model_dump()
        for name, changes in self._values.items():
            since = [now for at, _, now in changes if at <= moment]
            _put(values, name, since[-1] if since else changes[0][1])
        try:
            return RunConfig.model_validate(values)
        except ValueError as error:
            raise ConfigError(f"the run had settings that are none any more: {str(error).splitlines()[0]}") from None


def _put(values: dict[str, Any], name: str, text: str) -> None:
    *sections, key = name.split(".")
    for section in sections:
        values = values[section]
    try:
        values[key] = value_of(text)
    except (ValueError, SyntaxError, KeyError):
        raise ConfigError(f"the run had {name} = {text}, which can't be read back") from None


def value_of(text: str) -> Any:
    """The reverse of `core.shown.shown`, for what a config holds. Raises ValueError or SyntaxError."""
    match parse(text).body:
        case [ast.Expr(value)]:
            return ast.literal_eval(_Words().visit(value))
    raise ValueError("it is no value")


class _Words(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Constant:
        if node.id not in _WORDS:
            raise ValueError(f"unknown word {node.id}")
        return ast.Constant(_WORDS[node.id])
