"""Loads the tasks of one source: reads, checks, takes the side, the levels and the number that were asked for.

Every task that comes out is checked, has its structure, and is on the side that was asked for; ids are unique: the same
task again counts once, another task under the same id becomes `id~2`.
"""

import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from core.tasks.compose import MAX_OPERATORS, compositions
from core.tasks.folder import folder_tasks
from core.tasks.format import TaskError
from core.tasks.huggingface import huggingface_tasks
from core.tasks.jsonl import jsonl_tasks
from core.tasks.rows import Refused
from core.tasks.split import side_of
from core.tasks.starter import STARTER
from core.tasks.task import Task

Kind = Literal["starter", "composed", "folder", "jsonl", "huggingface"]
KINDS: tuple[Kind, ...] = ("starter", "composed", "folder", "jsonl", "huggingface")
MAX_COMPOSED = 200_000
"""In one list: about ten seconds to make, and 400 MB."""
SPLITS = ("train", "heldout", "all")


def load_source(
    *,
    kind: Kind,
    path: str = "",
    revision: str = "",
    split: Literal["train", "heldout", "all"] = "all",
    levels: tuple[int, ...] = (),
    count: int = 0,
    seed: int = 0,
    backend: str = "triton",
    refused: list[Refused] | None = None,
) -> list[Task]:
    """The tasks of one source, as `configs.schema.TaskSource` describes it.

    Args:
        path: folder, file or data set name, for the kinds that need one.
        split: side of the split by operator structure.
        levels: only these; empty takes all. What is refused elsewhere is passed over as well.
        count: how many to make for `composed`; elsewhere a part chosen by the seed, in the source's order; 0 takes all.
        refused: takes what is not a task; without it the first such file or row is an error.

    Raises:
        TaskError: the source can't be read, a task in it is unsound, or it has fewer tasks than were asked for.
    """
    if split not in SPLITS:
        raise TaskError(f"task source {kind}: split must be one of {', '.join(SPLITS)}, got {split!r}")
    if kind == "composed":
        return _composed(split, levels, count, seed, backend)
    everything: list[Task] = []
    out = [] if refused is None else refused
    elsewhere = 0
    for found in _read(kind, path, revision, backend):
        if isinstance(found, Task):
            everything.append(found)
        elif levels and found.level is not None and found.level not in levels:
            elsewhere += 1
        else:
            out.append(found)
    if out and not (everything and refused is not None):
        more = f" (and {len(out) - 1} more; `kernelmill tasks list` shows all)" if len(out) > 1 else ""
        raise TaskError(out[0].reason + more)
    everything = _unique(everything)
    chosen = [
        task
        for task in everything
        if (not levels or task.level in levels) and (split == "all" or side_of(task.structure) == split)
    ]
    label = f"task source {kind}{f' {path}' if path else ''}"
    if not everything and elsewhere:
        raise TaskError(f"{label}: nothing in it has {_level(levels)}; what it has of others is no task ({elsewhere})")
    if not everything:
        raise TaskError(f"{label}: it is empty; wanted at least one task")
    if not chosen:
        raise TaskError(
            f"{label}: none of its {len(everything)} tasks has {_asked(split, levels)}; it has {_there(everything)}"
        )
    if count > len(chosen):
        asked = _asked(split, levels)
        raise TaskError(
            f"{label}: {count} tasks were asked for, but it has only {len(chosen)}{f' of {asked}' if asked else ''}"
        )
    if count:
        places = sorted(random.Random(f"choose {seed}").sample(range(len(chosen)), count))
        chosen = [chosen[place] for place in places]
    return chosen


def _level(levels: tuple[int, ...]) -> str:
    """`level 9`, `levels 1, 2`."""
    return f"level{'s' if len(levels) > 1 else ''} {', '.join(map(str, levels))}"


def _asked(split: str, levels: tuple[int, ...]) -> str:
    """What was asked for, in words: `level 9 and split train`."""
    parts = ([_level(levels)] if levels else []) + ([f"split {split}"] if split != "all" else [])
    return " and ".join(parts)


def _there(tasks: list[Task]) -> str:
    """What the source has: `levels 1, 2, 3; train 70, heldout 30`."""
    sides = [side_of(task.structure) for task in tasks]
    found = _level(tuple(sorted({task.level for task in tasks})))
    return f"{found}; train {sides.count('train')}, heldout {sides.count('heldout')}"


def _read(kind: str, path: str, revision: str, backend: str) -> Iterable[Task | Refused]:
    if kind == "starter":
        return folder_tasks(STARTER, origin="starter", backend=backend)
    if kind not in KINDS:
        raise TaskError(f"task source of unknown kind {kind!r}; known are {', '.join(KINDS)}")
    if not path:
        raise TaskError(f"a task source of kind {kind!r} needs a path")
    if kind == "folder":
        return folder_tasks(Path(path), backend=backend)
    if kind == "jsonl":
        return jsonl_tasks(Path(path), revision=revision, backend=backend)
    return huggingface_tasks(path, revision=revision, backend=backend)


def _composed(
    split: Literal["train", "heldout", "all"], levels: tuple[int, ...], count: int, seed: int, backend: str
) -> list[Task]:
    known = range(1, MAX_OPERATORS)
    if not set(levels) <= set(known):
        raise TaskError(f"task source composed: makes {_level(tuple(known))}, got {_level(levels)}")
    if count < 1:
        raise TaskError(f"task source composed: needs the number of tasks to make, got count = {count}")
    if count > MAX_COMPOSED:
        raise TaskError(f"task source composed: makes at most {MAX_COMPOSED} tasks at once, got count = {count}")
    stream = (made for made in compositions(seed, split) if not levels or made.level in levels)
    return [made.task(backend) for made in islice(stream, count)]


def _unique(tasks: list[Task]) -> list[Task]:
    """Without repeats; another task under an id that is taken gets the next number behind it."""
    found: dict[str, Task] = {}
    known: set[tuple[str, str]] = set()
    for task in tasks:
        if (task.task_id, task.source) in known:
            continue
        known.add((task.task_id, task.source))
        ids = (f"~{number}" if number > 1 else "" for number in range(1, len(tasks) + 1))
        suffix = next(end for end in ids if task.task_id + end not in found)
        if suffix:
            task = msgspec.structs.replace(task, task_id=task.task_id + suffix, name=task.name + suffix)
        found[task.task_id] = task
    return list(found.values())
