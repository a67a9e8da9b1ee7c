"""A config that may be shown around: credentials are hidden before it reaches a report or another machine."""

from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"
SECRETS = ("token", "password", "secret", "key")


def redacted(value: Any, name: str = "") -> Any:
    """`value` with every credential in it replaced: fields whose name ends in a word of SECRETS (`token` and
    `api_key`, but not `max_new_tokens`), and user and password in addresses."""
    if isinstance(value, Mapping):
        return {key: redacted(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, name) for inner in value]
    if value and name.lower().rsplit("_", 1)[-1] in SECRETS:
        return HIDDEN
    if isinstance(value, str) and "://" in value and "@" in value:
        scheme, rest = value.split("://", 1)
        return f"{scheme}://{HIDDEN}@{rest.rsplit('@', 1)[1]}"
    return value
