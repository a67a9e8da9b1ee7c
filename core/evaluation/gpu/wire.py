"""What the trusted side and a candidate's GPU child say to each other: MessagePack with a length in front, and
descriptors of shared memory beside it.

    trusted side -> child   [command, arguments...]          child -> trusted side   ["done", answer] ["failed", error]

One order, one answer; the trusted side's clock runs between them. What the child says is data, bounded and believed
nowhere.
"""

import array
import contextlib
import socket
from typing import Any

import msgspec

MOST_BYTES = 16 * 2**20


class WireClosed(EOFError):
    """The other side is gone."""


class WireGarbled(WireClosed):
    """What the other side sent is no message."""


class Wire:
    """One end of the socket; used by one thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Any, descriptors: tuple[int, ...] = (), timeout_s: float | None = None) -> None:
        """Raises WireClosed, and TimeoutError when the other side does not read."""
        body = msgspec.msgpack.encode(message)
        self._end.settimeout(timeout_s)
        try:
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            self._end.sendmsg([len(body).to_bytes(4, "little")], beside)
            self._end.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            raise WireClosed("the other side is gone") from None

    def receive(self, timeout_s: float | None = None) -> tuple[Any, list[int]]:
        """The next message and the descriptors that came with it. Raises WireClosed, and TimeoutError."""
        self._end.settimeout(timeout_s)
        try:
            head, descriptors, _, _ = socket.recv_fds(self._end, 4, 4)
            while 0 < len(head) < 4:
                head += self._some(4 - len(head))
            length = int.from_bytes(head, "little")
            if not head:
                raise WireClosed("the other side is gone")
            if not 0 < length <= MOST_BYTES:
                raise WireGarbled(f"{length} bytes announced")
            body = bytearray()
            while len(body) < length:
                body += self._some(length - len(body))
            return msgspec.msgpack.decode(body), descriptors
        except ConnectionResetError as error:
            raise WireClosed(str(error)) from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise WireGarbled(str(error)) from None

    def _some(self, most: int) -> bytes:
        data = self._end.recv(min(most, 1 << 20))
        if not data:
            raise WireClosed("the other side is gone")
        return data

    def first_byte(self, timeout_s: float) -> bytes:
        """What comes before all messages: the sandbox's word that its walls stand."""
        self._end.settimeout(timeout_s)
        with contextlib.suppress(ConnectionResetError):
            return self._end.recv(1)
        return b""

    def close(self) -> None:
        self._end.close()
