"""`kernelmill tasks list SOURCE`: what tasks a source holds, and on which side of the split each is."""

import argparse
import sys
from typing import Any

EPILOG = "SOURCE is starter, composed:COUNT[:SEED], a folder that holds level*/N_name.py, or a .jsonl file."


def add_parser(subparsers: Any) -> None:
    """Add `tasks` to the command line."""
    parser = subparsers.add_parser("tasks", help="list the tasks of a source")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list")
    listing = actions.add_parser("list", help="print id, level, side and structure of each task", epilog=EPILOG)
    listing.add_argument("source", metavar="SOURCE", help="where the tasks come from")
    listing.add_argument("--split", choices=("train", "heldout", "all"), default="all", help="only this side")
    listing.add_argument("--level", type=int, action="append", default=[], help="only this level; may be repeated")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; 0, or 2 when the source can't be used."""
    from core.tasks.format import TaskError
    from core.tasks.sources import load_source
    from core.tasks.split import side_of

    try:
        tasks = load_source(**source_of(args.source), split=args.split, levels=tuple(args.level))
    except TaskError as error:
        print(f"kernelmill tasks: {error}", file=sys.stderr)
        return 2
    width = max(len(task.task_id) for task in tasks)
    print(f"{'id':{width}}  level  side     structure")
    for task in tasks:
        structure = task.structure if len(task.structure) <= 80 else f"{task.structure[:77]}..."
        print(f"{task.task_id:{width}}  {task.level:>5}  {side_of(task.structure):7}  {structure}")
    sides = [side_of(task.structure) for task in tasks]
    kinds = len({task.structure for task in tasks})
    print(f"{len(tasks)} tasks, {kinds} structures; train {sides.count('train')}, heldout {sides.count('heldout')}")
    return 0


def source_of(text: str) -> dict[str, Any]:
    """SOURCE as arguments of `load_source`.

    Raises:
        TaskError: none of the forms in EPILOG.
    """
    from core.tasks.format import TaskError

    if text == "starter":
        return {"kind": "starter"}
    kind, *numbers = text.split(":")
    if kind == "composed":
        if not 1 <= len(numbers) <= 2 or not all(number.isdecimal() for number in numbers):
            raise TaskError(f"got {text!r}, wanted composed:COUNT[:SEED] with whole numbers, e.g. composed:100:7")
        return {"kind": "composed", "count": int(numbers[0]), "seed": int(numbers[-1]) if len(numbers) == 2 else 0}
    return {"kind": "jsonl" if text.endswith(".jsonl") else "folder", "path": text}
