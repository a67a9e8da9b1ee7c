"""What lies where a task's file should be: only an ordinary file of a bounded size is read.

Whatever else stands there is told in words and never opened: a FIFO would wait for ever, a device may do anything.
"""

import errno
import os
import stat
import unicodedata
from pathlib import Path
from typing import BinaryIO

from core.tasks.format import TaskError

FILE, FOLDER, NOTHING = "a file", "a folder", "nothing"
_KINDS = (
    (stat.S_ISREG, FILE),
    (stat.S_ISDIR, FOLDER),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


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


def opened(path: Path, where: str, most: int) -> BinaryIO:
    """An ordinary file of at most `most` bytes, open.

    Raises:
        TaskError: anything else.
    """
    if (found := kind(path)) != FILE:
        raise TaskError(f"{where}: {found}, wanted a file")
    try:
        # Another thing may have taken its place since: a FIFO that is opened so does not wait.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise TaskError(f"{where}: {unreadable(error)}") from None
    size = os.fstat(file.fileno()).st_size
    if size > most:
        file.close()
        raise TaskError(f"{where}: {size:,} bytes; at most {most:,} are read")
    return file


def read(path: Path, where: str, most: int) -> bytes:
    """The whole of an ordinary file of at most `most` bytes.

    Raises:
        TaskError: anything else.
    """
    with opened(path, where, most) as file:
        try:
            data = file.read(most + 1) or b""
        except OSError as error:
            raise TaskError(f"{where}: {unreadable(error)}") from None
    if len(data) > most:  # it grew, or is one whose size nobody knows before
        raise TaskError(f"{where}: more than {most:,} bytes; at most these are read")
    return data


def odd(text: str) -> bool:
    """Holds what no terminal and no message can show: control characters, or bytes of a name that are no text."""
    return any(unicodedata.category(c) in ("Cc", "Cs") for c in text)


def shown(path: Path) -> str:
    """The path for a line of text, odd characters escaped."""
    return "".join(c.encode("unicode_escape").decode() if odd(c) else c for c in str(path))
