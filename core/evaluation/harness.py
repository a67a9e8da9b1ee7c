"""The child's end of the pipes: reading the job, sending frames. No torch operation here.

Frames on the result pipe: 4 bytes length, a MessagePack map, then the map's `blob_bytes` raw bytes.

    {"phase": "import"}                                   where we are, for timeouts and crashes
    {"error": {...}}                                      the exception, its line in the candidate
    {"draw": i, "tree": ..., "blob_bytes": n, ...}        outputs of one call
    {"trace": {...}}                                      launches, traffic, aten operators
"""

import os
from typing import Any

import msgspec

CONFINED = b"\x01"
"""First byte on the result pipe, written when the walls stand and before a candidate's code can run: from then on an
exit code is the candidate's own, whatever it is."""
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """The write end of the result pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, frame: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        body = _encode({**frame, "blob_bytes": sum(map(len, blobs or []))})
        for part in (len(body).to_bytes(4, "little") + body, *(blobs or [])):
            view = memoryview(part)
            while view:
                view = view[os.write(self._fd, view) :]


def read_job(fd: int) -> tuple[dict[str, Any], memoryview]:
    """The header and the tensors' bytes from the sealed memory file at `fd`, which is closed."""
    size = os.fstat(fd).st_size
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        done += os.preadv(fd, [view[done:]], done)
    os.close(fd)
    length = int.from_bytes(data[:4], "little")
    return msgspec.msgpack.decode(view[4 : 4 + length]), view[4 + length :]
