"""Tasks from a data set of the Hugging Face hub, or a local copy of one, in the layout of KernelBench's rows.

The revision must be pinned: data sets are re-published under the same name (KernelBench's sizes and KernelBook's
licence both changed that way). Needs the package `datasets` (extra `data`), imported only here.
"""

from collections.abc import Iterator
from pathlib import Path

from core.tasks.format import TaskError
from core.tasks.rows import task_of_row
from core.tasks.task import Task


def huggingface_tasks(path: str, *, revision: str, backend: str = "triton") -> Iterator[Task]:
    """All rows of all splits, in order.

    Raises:
        TaskError: the package is absent, no revision is given for a hub name, or a row lacks a field.
    """
    if not revision and not Path(path).is_dir():
        raise TaskError(f"{path}: a data set of the hub needs a pinned revision (a commit id), or it changes unnoticed")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise TaskError(
            f"{path}: the package 'datasets' is missing; install it with: pip install 'kernelmill[data]'"
        ) from error
    origin = path.rstrip("/").rsplit("/", 1)[-1]
    for split, rows in load_dataset(path, revision=revision or None).items():
        for number, row in enumerate(rows):
            yield task_of_row(row, origin=origin, backend=backend, where=f"{path}, split {split}, row {number}")
