"""Files of tasks (`core.plain_files`), and names of files for a line of text."""

import unicodedata
from pathlib import Path
from typing import BinaryIO

from core import plain_files
from core.plain_files import FILE, FOLDER, NOTHING, kind, unreadable
from core.tasks.format import TaskError

__all__ = ["FILE", "FOLDER", "NOTHING", "kind", "odd", "opened", "shown", "text", "unreadable"]


def opened(path: Path, where: str, most: int) -> BinaryIO:
    """An ordinary file of at most `most` bytes, open. Raises TaskError."""
    try:
        return plain_files.opened(path, where, most)
    except plain_files.NotPlain as error:
        raise TaskError(str(error)) from None


def text(path: Path, where: str, most: int) -> str:
    """The whole of an ordinary file of UTF-8 of at most `most` bytes. Raises TaskError."""
    try:
        return plain_files.text(path, where, most)
    except plain_files.NotPlain as error:
        raise TaskError(str(error)) from None


def odd(text: str) -> bool:
    """Holds what no terminal and no message can show: control characters, or bytes of a name that are no text."""
    return any(unicodedata.category(c) in ("Cc", "Cs") for c in text)


def shown(path: Path) -> str:
    """The path for a line of text, odd characters escaped."""
    return "".join(c.encode("unicode_escape").decode() if odd(c) else c for c in str(path))
