"""The base of every table of a config."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """Base of all tables: unknown keys, NaN and infinity are refused, values don't change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic would read true as 1; strict mode would refuse numbers that overrides give as strings, too."""
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if kinds & {int, float} and bool not in kinds:
            for given in value if isinstance(value, list | tuple) else (value,):
                if isinstance(given, bool):
                    raise ValueError(f"wanted a number, got {str(given).lower()}")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field is made of: int of `tuple[int, ...] | None`."""
    return {annotation}.union(*map(_kinds, _inner(annotation)))


def _inner(annotation: Any) -> tuple[Any, ...]:
    return tuple(part for part in get_args(annotation) if isinstance(part, type) or get_args(part))
