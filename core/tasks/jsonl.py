"""Tasks from a JSONL file, one object per line, in any layout of `core.tasks.rows`."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from core.tasks import files
from core.tasks.format import TaskError
from core.tasks.rows import Refused, level_of_row, task_of_row, task_or_refusal
from core.tasks.task import Task

MAX_ROW = 8 << 20
"""Bytes; rows hold prompts and profiles beside the source."""
MAX_FILE = 8 << 30
"""Bytes; its tasks are held in memory."""


def jsonl_tasks(path: Path, *, revision: str = "", backend: str = "triton") -> Iterator[Task | Refused]:
    """One task or refusal per line that is not empty; the origin is the file's name without `.jsonl`.

    Args:
        revision: of the data set that the file was made from; KernelBook's rows need it.

    Raises:
        TaskError: no such file, or one that can't be read.
    """
    shown = files.shown(path)
    if (found := files.kind(path)) != files.FILE:
        what = "no such file" if found == files.NOTHING else found
        raise TaskError(f"{shown}: {what}; wanted a .jsonl file with one task per line")
    with files.opened(path, shown, MAX_FILE) as file:
        for number, line in enumerate(_lines(file, shown), start=1):
            where = f"{shown}:{number}"
            if len(line) > MAX_ROW:
                yield Refused(where, f"{where}: a line of more than {MAX_ROW:,} bytes; at most these are read")
            elif line.strip():
                yield _found(line, path, revision, backend, where)


def _lines(file: BinaryIO, shown: str) -> Iterator[bytes]:
    """Of a line that is too long, only a beginning that is too long."""
    try:
        while line := file.readline(MAX_ROW + 1):
            yield line
            while len(line) > MAX_ROW and not line.endswith(b"\n"):
                line = file.readline(MAX_ROW + 1) or b"\n"
    except OSError as error:
        raise TaskError(f"{shown}: {files.unreadable(error)}") from None


def _found(line: bytes, path: Path, revision: str, backend: str, where: str) -> Task | Refused:
    try:
        row = json.loads(line)
    except ValueError as error:  # not JSON, or not UTF-8
        return Refused(where, f"{where}: the line is not JSON: {error}")
    except RecursionError:
        return Refused(where, f"{where}: the line is nested too deeply to be read")
    make = partial(task_of_row, row, origin=path.stem, backend=backend, where=where, revision=revision)
    return task_or_refusal(make, where, level_of_row(row))
