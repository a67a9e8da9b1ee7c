"""The base of every table of a config."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all tables: unknown keys, NaN and infinity are refused, values don't change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
