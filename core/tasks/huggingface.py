"""Tasks from a data set of the Hugging Face hub, or a local copy of one, in any layout of `core.tasks.rows`.

The revision must be pinned: data sets are re-published under the same name (KernelBench's sizes and KernelBook's
licence both changed that way). Needs the package `datasets` (extra `data`), imported only here.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from core.tasks.format import TaskError
from core.tasks.rows import Refused, level_of_row, task_of_row, task_or_refusal
from core.tasks.task import Task

SAVED = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` leaves; other folders hold plain data files."""


def huggingface_tasks(path: str, *, revision: str, backend: str = "triton") -> Iterator[Task | Refused]:
    """All rows of all splits, in order; a row that is not a task is a refusal.

    Args:
        path: a name on the hub, or a folder: one written by `save_to_disk`, or one of data files.
        revision: commit id on the hub; for a folder, of the data that it was made from.

    Raises:
        TaskError: the package is absent, no revision is given for a hub name, or there is no such data set.
    """
    local = Path(path)
    if not revision and not local.is_dir():
        raise TaskError(f"{path}: a data set of the hub needs a pinned revision (a commit id), or it changes unnoticed")
    try:
        from datasets import DatasetDict, load_dataset, load_from_disk
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise TaskError(f"{path}: the package 'datasets' is missing; install it with: make extra-data") from error
    try:
        if local.is_dir():
            found = load_from_disk(path) if any((local / name).is_file() for name in SAVED) else load_dataset(path)
        else:
            found = load_dataset(path, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:  # absent, and broken, data sets are any of these
        raise TaskError(f"{path}: can't be read as a data set: {' '.join(str(error).split())[:200]}") from error
    origin = path.rstrip("/").rsplit("/", 1)[-1]
    for split, rows in found.items() if isinstance(found, DatasetDict) else [("all", found)]:
        for number, row in enumerate(rows):
            where = f"{path}, split {split}, row {number}"
            make = partial(task_of_row, row, origin=origin, backend=backend, where=where, revision=revision)
            yield task_or_refusal(make, where, level_of_row(row))
