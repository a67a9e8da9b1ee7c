"""Messages to bytes and back: the only place where the wire's form is known.

One encoder, one typed decoder per message class and one for "any of them". What is decoded has been validated field by
field; what can't be is `Refused` with a one-word reason that callers count and log:

    oversize         more than MAX_BYTES; an episode goes by claim check (`bus.claims`)
    malformed        not MessagePack, or cut off
    unknown_schema   written by a version of the software whose messages mean something else
    unknown_type     no message class has this tag
    other_type       a message, but not the class that was asked for
    wrong_type       a field is missing or holds something of another type

Unknown fields are ignored, so that newer processes can talk to older ones.
"""

from typing import Any, TypeVar, Union, overload

import msgpack
import msgspec

from bus.broker import BusError, TooLarge
from bus.messages import ALL, SCHEMA, Message

MAX_BYTES = 8_000_000
"""Largest message. The server's limit is 8 MiB, headers included."""

T = TypeVar("T", bound=Message)


class Refused(BusError):
    """Bytes that are not a message this process can use. `reason` is one word, `detail` a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class _Head(msgspec.Struct):
    """What can be read of any message, whatever its fields mean."""

    type: str
    schema: int = SCHEMA


def _tag(cls: type[Message]) -> str:
    return str(cls.__struct_config__.tag)


_encoder = msgspec.msgpack.Encoder()
_head = msgspec.msgpack.Decoder(_Head)
_any = msgspec.msgpack.Decoder(Union[ALL])  # noqa: UP007
_typed: dict[type[Message], msgspec.msgpack.Decoder] = {cls: msgspec.msgpack.Decoder(cls) for cls in ALL}
TYPES: dict[str, type[Message]] = {_tag(cls): cls for cls in ALL}
"""Tag on the wire -> message class."""


def encode(message: Message, limit: int = MAX_BYTES) -> bytes:
    """The message as MessagePack. Raises TooLarge above `limit` bytes and TypeError for what is not in
    `messages.ALL`."""
    if type(message) not in _typed:
        raise TypeError(f"not a message of the bus: got {type(message).__name__}, known: {', '.join(sorted(TYPES))}")
    data = _encoder.encode(message)
    if len(data) > limit:
        raise TooLarge(f"message of type {_tag(type(message))!r} has {len(data)} bytes, the bus takes {limit}")
    return data


@overload
def decode(data: bytes, cls: None = None, limit: int = MAX_BYTES) -> Message: ...
@overload
def decode(data: bytes, cls: type[T], limit: int = MAX_BYTES) -> T: ...
def decode(data: bytes, cls: type[Message] | None = None, limit: int = MAX_BYTES) -> Message:
    """The message behind `data`, at most `limit` bytes; with `cls` it must be of that class. Raises Refused."""
    if len(data) > limit:
        raise Refused("oversize", f"got {len(data)} bytes, the limit is {limit}")
    try:
        message: Message = (_any if cls is None else _typed[cls]).decode(data)
    except msgspec.ValidationError as error:
        raise _explain(data, cls, error) from None
    except msgspec.DecodeError as error:
        raise Refused("malformed", f"{len(data)} bytes that are not MessagePack: {error}") from None
    if message.schema != SCHEMA:
        raise _other_schema(_tag(type(message)), message.schema)
    return message


def _explain(data: bytes, cls: type[Message] | None, error: msgspec.ValidationError) -> Refused:
    """Which of the reasons made a typed decoder fail. Another schema goes first: its fields may mean anything."""
    try:
        head = _head.decode(data)
    except msgspec.ValidationError as broken:
        return Refused("wrong_type", f"not a message of the bus: {broken}")
    if head.schema != SCHEMA:
        return _other_schema(head.type, head.schema)
    if head.type not in TYPES:
        return Refused("unknown_type", f"got type {head.type!r}, known: {', '.join(sorted(TYPES))}")
    if cls is not None and head.type != _tag(cls):
        return Refused("other_type", f"got type {head.type!r}, wanted {_tag(cls)!r}")
    return Refused("wrong_type", f"message of type {head.type!r}: {error}")


def _other_schema(tag: str, schema: int) -> Refused:
    return Refused(
        "unknown_schema",
        f"message of type {tag!r} has schema {schema}, this process speaks {SCHEMA}: run one version in one run",
    )


def peek(data: bytes) -> dict[str, Any]:
    """A message of any type, version or origin as plain data, for people: nothing about it is checked but that it is a
    MessagePack map. Raises Refused."""
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="replace")
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise Refused("malformed", f"{len(data)} bytes that are not MessagePack: {error}") from None
    if not isinstance(value, dict):
        raise Refused("malformed", f"got MessagePack of type {type(value).__name__}, wanted a map")
    return value
