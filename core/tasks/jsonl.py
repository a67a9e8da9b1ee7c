"""Tasks from a JSONL file, one object per line, in any layout of `core.tasks.rows`."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from core.tasks.format import TaskError
from core.tasks.rows import Refused, task_of_row, task_or_refusal
from core.tasks.task import Task


def jsonl_tasks(path: Path, *, revision: str = "", backend: str = "triton") -> Iterator[Task | Refused]:
    """One task or refusal per line that is not empty; the origin is the file's name without `.jsonl`.

    Args:
        revision: of the data set that the file was made from; KernelBook's rows need it.

    Raises:
        TaskError: no such file.
    """
    if not path.is_file():
        raise TaskError(f"{path}: no such file; wanted a .jsonl file with one task per line")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}:{number}"
                yield task_or_refusal(partial(_task, line, path, revision, backend, where), where)


def _task(line: bytes, path: Path, revision: str, backend: str, where: str) -> Task:
    try:
        row = json.loads(line)
    except ValueError as error:  # not JSON, or not UTF-8
        raise TaskError(f"{where}: the line is not JSON: {error}") from error
    return task_of_row(row, origin=path.stem, backend=backend, where=where, revision=revision)
