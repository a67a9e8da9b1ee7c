"""Append-only files of records that a crash can't spoil.

A record is one line of JSON (`.jsonl`) or one MessagePack map (`.msgpack`, one after the other). A batch is written
with one write and one fsync, so a crash leaves whole records and at most one torn one at the end: readers stop before
it, and `Appender` cuts it off before it writes on. Anything broken further up is damage that nobody here made, and
raises RecordError.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from core import plain_files

READ_BYTES = 1 << 20
WHAT_TO_DO = "restore the file, or move the folder record/ away: the run goes on, with a record from there"


class RecordError(ValueError):
    """A run folder or a file in it that can't be read; the text is one line for the person at the keyboard."""


def opened(path: Path) -> BinaryIO:
    """A file of the run folder, for reading. Raises RecordError for what is no file."""
    try:
        return plain_files.opened(path, str(path))
    except plain_files.NotPlain as error:
        raise RecordError(f"{error}; {WHAT_TO_DO}") from None


def lines(path: Path, from_byte: int = 0) -> Iterator[tuple[bytes, int]]:
    """(line without its newline, byte after it) for every whole line from `from_byte` on; nothing when the file is
    absent."""
    if not path.exists():
        return
    with opened(path) as file:
        file.seek(from_byte)
        end = from_byte
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield line[:-1], end


def maps(path: Path, from_byte: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """(MessagePack map, byte after it) for every whole record from `from_byte` on; nothing when the file is absent."""
    if not path.exists():
        return
    with opened(path) as file:
        file.seek(from_byte)
        unpacker = msgpack.Unpacker(file, read_size=READ_BYTES, max_buffer_size=0, strict_map_key=False)
        try:
            for value in unpacker:
                if not isinstance(value, dict):
                    # A file system may fill a torn end with zeros, which read as the number 0.
                    if value == 0 and not _rest(path, from_byte + unpacker.tell()).strip(b"\0"):
                        return
                    raise RecordError(
                        f"{path}: byte {from_byte + unpacker.tell() - 1} starts no record: {value!r}; {WHAT_TO_DO}"
                    )
                yield value, from_byte + unpacker.tell()
        except (msgpack.exceptions.FormatError, msgpack.exceptions.StackError, UnicodeDecodeError) as error:
            raise RecordError(
                f"{path}: not MessagePack after byte {from_byte + unpacker.tell()}: {error}; {WHAT_TO_DO}"
            ) from error


def _rest(path: Path, from_byte: int) -> bytes:
    with opened(path) as file:
        file.seek(from_byte)
        return file.read()


class Appender:
    """One file, open for appending; whole records only."""

    def __init__(self, path: Path, whole_bytes: int) -> None:
        """`whole_bytes`: where the last whole record ends; what follows is cut off."""
        self.path = path
        self._file: BinaryIO = path.open("ab")
        if self._file.tell() > whole_bytes:
            self._file.truncate(whole_bytes)
            self._file.seek(0, os.SEEK_END)
        self.bytes = whole_bytes

    def append(self, records: Sequence[bytes]) -> None:
        """Write the batch and wait until the disk has it."""
        data = b"".join(records)
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.bytes += len(data)

    def close(self) -> None:
        self._file.close()


def replace(path: Path, data: bytes) -> None:
    """Write a small file so that it is either the old or the new one, whatever crashes."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
