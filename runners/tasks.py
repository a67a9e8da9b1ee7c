"""`kernelmill tasks list SOURCE`: what tasks a source holds, and on which side of the split each is."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from core.tasks.rows import Refused
    from core.tasks.task import Task

EPILOG = (
    "SOURCE is starter, composed:COUNT[:SEED], a folder that holds levelN/NAME.py (such as level1/19_ReLU.py), "
    "a .jsonl file, or huggingface:NAME@REVISION. A local data set is huggingface:FOLDER; @REVISION may follow it and "
    "a .jsonl file."
)


def add_parser(subparsers: Any) -> None:
    """Add `tasks` to the command line."""
    parser = subparsers.add_parser("tasks", help="list the tasks of a source")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list")
    listing = actions.add_parser("list", help="print id, level, side and structure of each task", epilog=EPILOG)
    add_choice(listing)
    parser.set_defaults(run=run)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add SOURCE and what is taken of it."""
    parser.add_argument("source", metavar="SOURCE", help="where the tasks come from")
    parser.add_argument("--split", choices=("train", "heldout", "all"), default="all", help="only this side")
    parser.add_argument(
        "--level", type=int, nargs="+", action="extend", default=[], metavar="N", help="only these levels"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table; 0, or 2 when no task of the source can be used."""
    from core.tasks.format import TaskError
    from core.tasks.split import side_of

    refused: list[Refused] = []
    try:
        tasks = read_source(args, refused)
    except TaskError as error:
        for one in refused:
            print(f"refused: {one.reason}")
        print(f"kernelmill tasks: {error}", file=sys.stderr)
        return 2
    width = max(len(task.task_id) for task in tasks)
    print(f"{'id':{width}}  level  side     structure")
    for task in tasks:
        structure = task.structure if len(task.structure) <= 80 else f"{task.structure[:77]}..."
        print(f"{task.task_id:{width}}  {task.level:>5}  {side_of(task.structure):7}  {structure}")
    for one in refused:
        print(f"refused: {one.reason}")
    sides = [side_of(task.structure) for task in tasks]
    kinds = len({task.structure for task in tasks})
    print(
        f"{len(tasks)} tasks, {kinds} structures; train {sides.count('train')}, heldout {sides.count('heldout')}; "
        f"{len(refused)} refused"
    )
    return 0


def read_source(args: argparse.Namespace, refused: "list[Refused]") -> "list[Task]":
    """The tasks that the options choose, at least one; `refused` takes what is not a task.

    Raises:
        TaskError: SOURCE is none of the forms in EPILOG, can't be read, or holds no task that can be used.
    """
    from core.tasks.sources import load_source

    source = source_of(args.source)
    tasks = load_source(**source, split=args.split, levels=tuple(args.level), refused=refused)
    tell_left_out([source])
    return tasks


def tell_left_out(sources: "Iterable[Mapping[str, Any]]") -> None:
    """One line on stderr for each folder with files that no level holds."""
    from core.tasks.folder import left_out

    for path in dict.fromkeys(source["path"] for source in sources if source["kind"] == "folder"):
        if line := left_out(Path(path)):
            print(f"note: {line}", file=sys.stderr)


def source_of(text: str) -> dict[str, Any]:
    """SOURCE as arguments of `load_source`.

    Raises:
        TaskError: none of the forms in EPILOG.
    """
    from core.tasks import files
    from core.tasks.format import TaskError

    if text == "starter":
        return {"kind": "starter"}
    kind, _, rest = text.partition(":")
    if kind == "composed":
        numbers = rest.split(":") if rest else []
        if not 1 <= len(numbers) <= 2 or not all(number.isdecimal() for number in numbers):
            raise TaskError(f"got {text!r}, wanted composed:COUNT[:SEED] with whole numbers, e.g. composed:100:7")
        return {"kind": "composed", "count": int(numbers[0]), "seed": int(numbers[-1]) if len(numbers) == 2 else 0}
    if kind == "huggingface":
        path, _, revision = rest.partition("@")
        return {"kind": "huggingface", "path": path, "revision": revision}
    path, at, revision = text.rpartition("@")
    if at and path.endswith(".jsonl"):
        return {"kind": "jsonl", "path": path, "revision": revision}
    if text.endswith(".jsonl"):
        return {"kind": "jsonl", "path": text}
    if "/" not in text and files.kind(Path(text)) == files.NOTHING:
        raise TaskError(
            f"got {text!r}, wanted starter, composed:COUNT, huggingface:NAME@REVISION, a folder or a .jsonl"
        )
    return {"kind": "folder", "path": text}
