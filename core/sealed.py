"""A small JSON file that tells when any byte of it was changed: its field `seal` is the sha256 of the whole file with
the seal itself as zeros.

Manifests say what other files must be, so nothing else would notice a change in one: another type, another folder of
the tokenizer, another step. The struct forbids unknown fields, since a changed name of the field would leave no seal.
A file without one is from before there were seals, and is taken as it is.
"""

import hashlib
from typing import TypeVar

import msgspec


class Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is written so."""

    seal: str = ""


S = TypeVar("S", bound=Sealed)
_OPEN = "0" * 64


class BrokenSeal(ValueError):
    """The file is not the one that was written."""


def sealed(value: Sealed) -> bytes:
    """The file's bytes."""
    data = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(value, seal=_OPEN)))
    return data.replace(_field(_OPEN), _field(_digest(data)), 1)


def unsealed(data: bytes, kind: type[S]) -> S:
    """What `sealed` wrote. Raises BrokenSeal, msgspec.DecodeError, UnicodeDecodeError."""
    value = msgspec.json.decode(data, type=kind)
    if value.seal and _digest(data.replace(_field(value.seal), _field(_OPEN), 1)) != value.seal:
        raise BrokenSeal("it was changed since it was written")
    return value


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _field(seal: str) -> bytes:
    return f'"seal": "{seal}"'.encode()
