"""Tasks from a folder in KernelBench's layout: `level1/19_ReLU.py`, one problem per file.

Files named `*_triton.py` are answers beside their tasks (the starter set has them) and are left out.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from core.tasks.format import TaskError
from core.tasks.rows import Refused, make_task, task_or_refusal
from core.tasks.task import Task

ANSWER = "_triton.py"


def folder_tasks(path: Path, *, origin: str = "", backend: str = "triton") -> Iterator[Task | Refused]:
    """All problems of the folder, by level and then by number or name; a file that is not a task is a refusal.

    Raises:
        TaskError: a file, no such folder, or no level folders in it.
    """
    if path.is_file():
        raise TaskError(
            f"{path}: a file that is no .jsonl; wanted a folder that holds level1/, level2/, ... with one problem per "
            "file, or a .jsonl file with one task per line"
        )
    if not path.is_dir():
        raise TaskError(
            f"{path}: no such folder; wanted one that holds level1/, level2/, ... with one problem per file"
        )
    levels = sorted(child for child in path.iterdir() if child.is_dir() and re.fullmatch(r"level\d+", child.name))
    if not levels:
        raise TaskError(f"{path}: holds no folder level1, level2, ...; wanted level*/N_name.py")
    for folder in levels:
        level = folder.name.removeprefix("level")
        for file in sorted(folder.glob("*.py"), key=_by_number):
            if file.name.endswith(ANSWER) or file.name == "__init__.py":
                continue
            where = f"{folder.name}/{file.name}" if origin else str(file)
            name, of = f"l{level}_{file.stem}", origin or path.name
            yield task_or_refusal(partial(_task, file, name, level, of, backend, where), where)


def _task(file: Path, name: str, level: str, origin: str, backend: str, where: str) -> Task:
    return make_task(name=name, level=level, origin=origin, source=_text(file), backend=backend, where=where)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{file}: not UTF-8 text (byte {error.start})") from None


def _by_number(file: Path) -> tuple[int, str]:
    number = re.match(r"\d+", file.name)
    return (int(number.group()) if number else 0, file.name)
