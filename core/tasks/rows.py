"""Turns one file or row into a task or a refusal, whichever of the known layouts a row has.

slime JSONL:      label = source, instance_id, extra_info {level, problem_id (text), problem_name}
KernelBench rows: code = source, level, problem_id (number), name
KernelBook rows:  python_code, entry_point (`core.tasks.kernelbook`)
Sakana's archive: PyTorch_Code_Module, Level_ID, Task_ID, Op_Name (`core.tasks.sakana`)
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from core.shown import shown
from core.tasks import files, kernelbook, sakana
from core.tasks.format import TaskError, parse, profiles_of
from core.tasks.structure import structure_of
from core.tasks.task import LEVELS, Task

MAX_SOURCE = 1 << 20
"""Characters, and bytes of a file; whole models take a few thousand."""


class Refused(msgspec.Struct, frozen=True):
    """A file or row that is not a task."""

    where: str
    reason: str
    """One line that begins with `where`."""
    level: int | None = None
    """That it says it is of; None where it does not say."""


def task_or_refusal(make: Callable[[], Task], where: str, level: int | None = None) -> Task | Refused:
    """What `make` gives, or why it is refused."""
    try:
        return make()
    except TaskError as error:
        return Refused(where, " ".join(str(error).split()), level)
    except (RecursionError, MemoryError):
        return Refused(where, f"{where}: the source is nested too deeply to be read", level)


def make_task(*, name: str, level: Any, origin: str, source: Any, backend: str, where: str) -> Task:
    """A checked task.

    Args:
        where: names the file and line or row in errors.

    Raises:
        TaskError: no source, an unknown level, a name that can't be shown, or a source that does not keep the format.
    """
    if not isinstance(source, str) or not source.strip():
        raise TaskError(f"{where}: the source must be a text that holds Python, got {shown(source, 60)}")
    source = source.removeprefix("\ufeff")  # a byte order mark, which Python accepts in a file and not in a text
    if len(source) > MAX_SOURCE:
        raise TaskError(f"{where}: the source has {len(source):,} characters; at most {MAX_SOURCE:,} are read")
    if files.odd(f"{origin}/{name}"):
        raise TaskError(f"{where}: the name has control characters, or bytes that are no text; rename it")
    if str(level) not in [str(known) for known in LEVELS]:
        raise TaskError(f"{where}: level must be one of {', '.join(map(str, LEVELS))}, got {shown(level)}")
    profiles_of(parse(source, where), where)
    structure = structure_of(source, where)
    if not structure:
        raise TaskError(f"{where}: Model.forward returns nothing that is computed from its inputs or parameters")
    return Task(
        task_id=f"{origin}/{name}",
        name=name,
        level=int(level),
        origin=origin,
        source=source,
        backend=backend,
        structure=structure,
    )


def task_of_row(row: Any, *, origin: str, backend: str, where: str, revision: str = "") -> Task:
    """The task in a data set's row; see the module for the layouts.

    Raises:
        TaskError: none of the layouts, a source that does not keep the format, or a licence that is not pinned.
    """
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: a row must be an object with the fields 'label' or 'code', got {shown(row, 60)}")
    if kernelbook.is_row(row):
        fields = kernelbook.fields(row, where, revision)
    elif sakana.is_row(row):
        fields = sakana.fields(row, where)
    else:
        fields = _kernelbench(row, where)
    return make_task(**fields, origin=origin, backend=backend, where=where)


def level_of_row(row: Any) -> int | None:
    """The level that a row says it is of, whatever else is wrong with it; None where it names none of `LEVELS`."""
    if not isinstance(row, Mapping):
        return None
    extra = row.get("extra_info")
    facts = {**row, **extra} if isinstance(extra, Mapping) else row
    said = str(facts.get("Level_ID" if sakana.is_row(row) else "level"))
    return next((level for level in LEVELS if str(level) == said), None)


def _kernelbench(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Name, level and source of slime's and KernelBench's rows."""
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
    return {"name": str(name), "level": level, "source": source}
