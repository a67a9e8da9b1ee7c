"""Turns one row of a data set into a task, whichever of the known layouts it has.

slime JSONL:      label = source, instance_id, extra_info {level, problem_id (text), problem_name}
KernelBench rows: code = source, level, problem_id (number), name
"""

from collections.abc import Mapping
from typing import Any

from core.tasks.format import TaskError, parse, profiles_of
from core.tasks.structure import structure_of
from core.tasks.task import LEVELS, Task


def make_task(*, name: str, level: Any, origin: str, source: Any, backend: str, where: str) -> Task:
    """A checked task.

    Args:
        where: names the file and line or row in errors.

    Raises:
        TaskError: no source, an unknown level, or a source that does not keep the format.
    """
    if not isinstance(source, str) or not source.strip():
        raise TaskError(f"{where}: the source must be a text that holds Python, got {source!r:.60}")
    if str(level) not in [str(known) for known in LEVELS]:
        raise TaskError(f"{where}: level must be one of {', '.join(map(str, LEVELS))}, got {level!r}")
    profiles_of(parse(source, where), where)
    return Task(
        task_id=f"{origin}/{name}",
        name=name,
        level=int(level),
        origin=origin,
        source=source,
        backend=backend,
        structure=structure_of(source, where),
    )


def task_of_row(row: Any, *, origin: str, backend: str, where: str) -> Task:
    """The task in a data set's row; see the module for the layouts."""
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: a row must be an object with the fields 'label' or 'code', got {type(row).__name__}")
    extra = row.get("extra_info")
    facts = {**row, **extra} if isinstance(extra, Mapping) else dict(row)
    source = next((facts[field] for field in ("label", "code", "source") if facts.get(field)), None)
    if source is None:
        raise TaskError(
            f"{where}: the row has no source: wanted a field 'label' or 'code', got {', '.join(row) or 'none'}"
        )
    level = facts.get("level")
    if level is None:
        raise TaskError(f"{where}: the row has no level: wanted extra_info.level or level, got {', '.join(facts)}")
    number, title = str(facts.get("problem_id") or ""), str(facts.get("problem_name") or facts.get("name") or "")
    # KernelBench's names begin with the number already.
    parts = [f"l{level}", "" if title.startswith(f"{number}_") else number, title.removesuffix(".py")]
    name = row.get("instance_id") or "_".join(part for part in parts if part)
    return make_task(name=str(name), level=level, origin=origin, source=source, backend=backend, where=where)
