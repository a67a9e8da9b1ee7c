"""Tasks from a JSONL file, one object per line, in the layout of slime's KernelBench files or of KernelBench's rows."""

import json
from collections.abc import Iterator
from pathlib import Path

from core.tasks.format import TaskError
from core.tasks.rows import task_of_row
from core.tasks.task import Task


def jsonl_tasks(path: Path, *, backend: str = "triton") -> Iterator[Task]:
    """One task per line that is not empty; the origin is the file's name without `.jsonl`.

    Raises:
        TaskError: no such file, a line that is not JSON or lacks a field; names the line.
    """
    if not path.is_file():
        raise TaskError(f"{path}: no such file; wanted a .jsonl file with one task per line")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:  # not JSON, or not UTF-8
                raise TaskError(f"{where}: the line is not JSON: {error}") from error
            yield task_of_row(row, origin=path.stem, backend=backend, where=where)
