"""What lies where a file should be: only an ordinary file of a bounded size is read.

Whatever else stands there is told in words and never opened: a FIFO would wait for ever, a device may do anything, and
one that never ends would fill the memory.
"""

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

FILE, FOLDER, NOTHING = "a file", "a folder", "nothing"
ENDLESS = 1 << 62
"""For files that are read piece by piece, or that only we write."""
_KINDS = (
    (stat.S_ISREG, FILE),
    (stat.S_ISDIR, FOLDER),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotPlain(ValueError):
    """Something else than an ordinary file that can be read; the text says what, after the name that was given."""


def kind(path: Path) -> str:
    """What stands there, links followed: one of `_KINDS`, `nothing`, or why that can't be told."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nothing" if path.is_symlink() else NOTHING
    except OSError as error:
        return "a link that leads back to itself" if error.errno == errno.ELOOP else unreadable(error)
    except ValueError:  # a name that no file system has
        return NOTHING
    return next((name for holds, name in _KINDS if holds(mode)), "no ordinary file")


def unreadable(error: OSError) -> str:
    return f"can't be read ({error.strerror or error})"


def opened(path: Path, where: str, most: int = ENDLESS) -> BinaryIO:
    """An ordinary file of at most `most` bytes, open. Raises NotPlain."""
    if (found := kind(path)) == NOTHING:
        raise NotPlain(f"{where}: no such file")
    if found != FILE:
        raise NotPlain(f"{where}: {found}, wanted a file")
    try:
        # Another thing may have taken its place since: a FIFO that is opened so does not wait.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise NotPlain(f"{where}: {unreadable(error)}") from None
    size = os.fstat(file.fileno()).st_size
    if size > most:
        file.close()
        raise NotPlain(f"{where}: {size:,} bytes; at most {most:,} are read")
    return file


def read(path: Path, where: str, most: int) -> bytes:
    """The whole of an ordinary file of at most `most` bytes. Raises NotPlain."""
    parts, left = [], most + 1
    with opened(path, where, most) as file:
        try:
            while left > 0 and (part := file.read(min(left, 1 << 20))):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise NotPlain(f"{where}: {unreadable(error)}") from None
    if left <= 0:  # it grew, or is one whose size nobody knows before
        raise NotPlain(f"{where}: more than {most:,} bytes; at most these are read")
    return b"".join(parts)


def text(path: Path, where: str, most: int) -> str:
    """As `read`, of UTF-8, with any ends of lines. Raises NotPlain."""
    try:
        return io.TextIOWrapper(io.BytesIO(read(path, where, most)), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise NotPlain(f"{where}: not UTF-8 text (byte {error.start})") from None
