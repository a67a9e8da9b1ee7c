"""What host and executor say to each other: messages of one candidate's two processes, and how values travel in them.

The host runs the candidate's Python and has no data; the executor has the data and runs no Python of the candidate.
Tensors travel as references into the executor's storages, never as bytes, except tensors that the candidate made
itself from Python numbers. Messages are MessagePack arrays with a length of 4 bytes in front:

    host -> executor    ["op", name, args, kwargs, sync, ids]     run an aten operator
                        ["kernel", key, definition]               a kernel's source, before its first launch
                        ["launch", key, args, options, grid, line]
                        ["grow", storage, bytes] ["free", storages]
                        ["done", payload] ["failed", error]       the answer to a command
    executor -> host    ["ok", value] ["error", type, message]    the answer to an operator with sync
                        ["import", source] ["construct", init] ["tensors", ...] ["call", ...]

A value is a number, string, None, or a list whose first element is its kind (`encode`).
"""

import socket
from collections.abc import Callable
from typing import Any

import msgspec

MAX_MESSAGE_BYTES = 256 * 2**20
MAX_DEPTH = 64
"""Values nested deeper are refused where they arrive: whoever reads them after must not run out of stack."""
_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder().decode


class LinkClosed(EOFError):
    """The other process is gone."""


class Garbled(ValueError):
    """What arrived is no message."""


class Link:
    """One end of the socket between host and executor; used by one thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._stream = end.makefile("rb", buffering=1 << 16)
        self._pending = bytearray()

    def post(self, *message: Any) -> None:
        """Send without waiting; small messages leave together with the next one that is waited for."""
        body = _encoder.encode(message)
        self._pending += len(body).to_bytes(4, "little") + body
        if len(self._pending) > 1 << 16:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            data, self._pending = self._pending, bytearray()
            try:
                self._end.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                raise LinkClosed from None

    def receive(self) -> list[Any]:
        """The next message; LinkClosed at the end."""
        self.flush()
        head = self._read(4)
        length = int.from_bytes(head, "little")
        if length > MAX_MESSAGE_BYTES:
            raise Garbled(f"a message of {length:,} bytes")
        try:
            message = _decode(self._read(length))
        except (msgspec.DecodeError, RecursionError) as error:
            raise Garbled(str(error)) from None
        if not isinstance(message, list) or not message:
            raise Garbled(f"a {type(message).__name__} instead of a message")
        return message

    def _read(self, length: int) -> bytes:
        try:
            data = self._stream.read(length)
        except ConnectionResetError:  # it went with something of ours unread
            raise LinkClosed from None
        if len(data) < length:
            raise LinkClosed
        return data

    def ask(self, *message: Any) -> list[Any]:
        self.post(*message)
        return self.receive()


def encode(value: Any, special: Callable[[Any], list[Any] | None]) -> Any:
    """Plain data for a value; `special` encodes what this file does not know (tensors first) or answers None.

    Raises TypeError for what can't travel.
    """
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else ["i", str(value)]
    if type(value) is list:
        return ["l", *[encode(part, special) for part in value]]
    found = special(value)
    if found is not None:
        return found
    if isinstance(value, list):
        return ["l", *[encode(part, special) for part in value]]
    if isinstance(value, tuple):
        return ["u", *[encode(part, special) for part in value]]
    if isinstance(value, dict):
        return ["d", *[[encode(key, special), encode(part, special)] for key, part in value.items()]]
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if isinstance(value, range):
        return ["r", value.start, value.stop, value.step]
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} can't be passed on")


def decode(value: Any, special: Callable[[list[Any]], Any], depth: int = 0) -> Any:
    """The value back; `special` decodes the kinds that this file does not know. Raises Garbled beyond MAX_DEPTH."""
    if not isinstance(value, list):
        return value
    if depth > MAX_DEPTH:
        raise Garbled(f"a value nested deeper than {MAX_DEPTH}")
    match value:
        case ["l", *parts]:
            return [decode(part, special, depth + 1) for part in parts]
        case ["u", *parts]:
            return tuple([decode(part, special, depth + 1) for part in parts])
        case ["d", *pairs]:
            return {decode(key, special, depth + 1): decode(part, special, depth + 1) for key, part in pairs}
        case ["i", text]:
            return int(text)
        case ["c", real, imag]:
            return complex(real, imag)
        case ["r", start, stop, step]:
            return range(start, stop, step)
    return special(value)
