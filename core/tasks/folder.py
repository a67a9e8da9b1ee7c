"""Tasks from a folder in KernelBench's layout: `level1/19_ReLU.py`, one problem per file.

KernelBench's files begin with a number, by which they are ordered here; a name without one is a problem all the same.
Files named `*_triton.py` are answers beside their tasks (the starter set has them) and are left out.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from core.tasks import files
from core.tasks.format import TaskError
from core.tasks.rows import MAX_SOURCE, Refused, make_task, task_or_refusal
from core.tasks.task import Task

ANSWER = "_triton.py"
_LEVEL = r"level\d+"


def folder_tasks(path: Path, *, origin: str = "", backend: str = "triton") -> Iterator[Task | Refused]:
    """All problems of the folder, by level and then by number or name; what is named like a problem or like a folder of
    a level, but is none, is a refusal.

    Raises:
        TaskError: a file, no such folder, or no level folders in it.
    """
    found = files.kind(path)
    if found == files.FILE:
        raise TaskError(
            f"{files.shown(path)}: a file that is no .jsonl; wanted a folder that holds level1/, level2/, ... with one "
            "problem per file, or a .jsonl file with one task per line"
        )
    if found != files.FOLDER:
        raise TaskError(
            f"{files.shown(path)}: {'no such folder' if found == files.NOTHING else found}; wanted one that holds "
            "level1/, level2/, ... with one problem per file"
        )
    levels = [child for child in _children(path, files.shown(path)) if re.fullmatch(_LEVEL, child.name)]
    if not levels:
        raise TaskError(f"{files.shown(path)}: holds no folder level1, level2, ...; wanted levelN/NAME.py")
    for folder in sorted(levels):
        level = folder.name.removeprefix("level")
        where = folder.name if origin else files.shown(folder)
        try:
            children = _children(folder, where)
        except TaskError as error:
            yield Refused(where, str(error), int(level))
            continue
        for file in sorted((child for child in children if child.name.endswith(".py")), key=_by_number):
            if file.name.endswith(ANSWER) or file.name == "__init__.py":
                continue
            where = f"{folder.name}/{file.name}" if origin else files.shown(file)
            name, of = f"l{level}_{file.stem}", origin or path.name
            yield task_or_refusal(partial(_task, file, name, level, of, backend, where), where, int(level))


def left_out(path: Path) -> str:
    """One line about the problems' files that stand outside the folders level1/, level2/, ... and so are no tasks;
    nothing where there are none. Folders within those are outside, too. Hidden folders and what is linked
    are not looked into."""
    found: list[str] = []
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if name[0] not in "._")
        if Path(folder).parent == path and re.fullmatch(_LEVEL, Path(folder).name):
            continue
        candidates = (name for name in sorted(names) if name.endswith(".py") and name != "__init__.py")
        found += [files.shown(Path(folder, name)) for name in candidates if not name.endswith(ANSWER)]
    if not found:
        return ""
    what, are = ("file", "is") if len(found) == 1 else ("files", "are")
    return (
        f"{files.shown(path)}: {len(found)} .py {what} outside level1/, level2/, ... {are} left out, e.g. {found[0]}; "
        "tasks are levelN/NAME.py"
    )


def _children(folder: Path, where: str) -> list[Path]:
    if (found := files.kind(folder)) != files.FOLDER:
        raise TaskError(f"{where}: {found}, wanted a folder")
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise TaskError(f"{where}: {files.unreadable(error)}") from None


def _task(file: Path, name: str, level: str, origin: str, backend: str, where: str) -> Task:
    return make_task(
        name=name, level=level, origin=origin, source=files.text(file, where, MAX_SOURCE), backend=backend, where=where
    )


def _by_number(file: Path) -> tuple[int, str]:
    number = re.match(r"\d+", file.name)
    return (int(number.group()) if number else 0, file.name)
