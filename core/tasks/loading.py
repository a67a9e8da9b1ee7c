"""All tasks of a config's sources in one list."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.shown import shown
from core.tasks.format import TaskError
from core.tasks.rows import Refused
from core.tasks.sources import load_source
from core.tasks.task import Task


def load_tasks(
    sources: Sequence[Mapping[str, Any]], backend: str, side: str = "train", refused: list[Refused] | None = None
) -> list[Task]:
    """The tasks of all sources, in order; an id that comes twice is refused, and so is an empty list (TaskError).
    `refused` takes what is not a task; without it the first such file or row is an error."""
    found: dict[str, Task] = {}
    for source in sources:
        bad: list[Refused] = [] if refused is None else refused
        tasks = load_source(**source, backend=backend, refused=bad)
        if bad and refused is None:
            more = f" (and {len(bad) - 1} more; `kernelmill tasks list` shows all)" if len(bad) > 1 else ""
            raise TaskError(f'tasks.{side}: {bad[0].reason}{more}; tasks.refused = "skip" leaves out what is no task')
        for task in tasks:
            if task.task_id in found and found[task.task_id].source != task.source:
                raise TaskError(f"two {side} tasks are called {task.task_id!r}; ids must be unique in a run")
            found[task.task_id] = task
    if not found:
        told = "; ".join(map(_source, sources)) or "it names no source"
        raise TaskError(f"tasks.{side} gives no tasks: {told}; widen its levels, split or count")
    return list(found.values())


def _source(source: Mapping[str, Any]) -> str:
    """As in a recipe: `kind = 'folder', path = 'mine'`; without what is not set."""
    return ", ".join(f"{key} = {shown(value)}" for key, value in source.items() if value not in ("", 0, (), [], None))


FIRST_REASONS = 5


def told(refused: Sequence[Refused], side: str) -> str:
    """What was left out, in one line: how many, and why of the first."""
    reasons = "; ".join(one.reason for one in refused[:FIRST_REASONS])
    more = f"; and {len(refused) - FIRST_REASONS} more" if len(refused) > FIRST_REASONS else ""
    return f"tasks.{side}: {len(refused)} files or rows are no tasks and are left out: {reasons}{more}"
