"""`kernelmill audit SOURCE`: which tasks would pay for an answer that computes nothing.

Each task's output is compared with zeros, a constant, the output for other inputs and its own inputs, under the
tolerances that RL systems use and under ours. A margin of 1 or less passes; 50 misses by a factor of 50. Tasks too
large for a CPU are made smaller first, and the row says how.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.pulse import Pulse, lasting
from runners.tasks import EPILOG, add_choice, read_source

if TYPE_CHECKING:
    from core.tasks.audit import Audit
    from core.tasks.rows import Refused


def add_parser(subparsers: Any) -> None:
    """Add `audit` to the command line."""
    parser = subparsers.add_parser(
        "audit",
        help="find tasks that pay for computing nothing",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_choice(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N tasks (default: all)")
    parser.add_argument("--json", action="store_true", help="print the whole table as JSON instead of lines")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep audits in this file, and go on from it")
    parser.add_argument("--wall", type=float, default=60.0, metavar="SECONDS", help="for one attempt (default 60)")
    parser.add_argument("--memory", type=int, default=4096, metavar="MB", help="for one task (default 4096)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print rows as they come, then the counts; 0 when no task is flagged, 1 when some are, 2 when none can be read."""
    from core.evaluation.audit.auditor import Auditor
    from core.tasks.audit import as_json, summary
    from runners.preflight import check_writable
    from runners.usage import UsageError

    if not 0 < args.wall < float("inf") or args.memory < 256:
        raise UsageError(f"--wall {args.wall:g}, --memory {args.memory}: wanted more than 0 s and at least 256 MB")
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit {args.limit}: wanted at least 1; leave it out for all tasks")
    if args.keep and not args.keep.exists():
        check_writable(args.keep.absolute().parent, f"--keep {args.keep}")
    auditor = Auditor(args.keep, wall_s=args.wall, memory_mb=args.memory)
    if auditor.torn:
        cut = f"{auditor.torn} bytes of an audit that was not written to its end: left out, it is made again"
        print(f"kernelmill audit: --keep {args.keep} ended in {cut}", file=sys.stderr)
    refused: list[Refused] = []
    tasks = read_source(args, refused)[: args.limit]
    width = max(len(task.task_id) for task in tasks)
    audits: list[Audit] = []
    began = time.monotonic()

    def under_way() -> str:
        now = f"{tasks[len(audits)].task_id} is under way" if len(audits) < len(tasks) else "ending"
        return f"kernelmill audit: {len(audits)} of {len(tasks)} tasks, {lasting(time.monotonic() - began)}; {now}"

    with auditor, Pulse(under_way) as pulse:
        for task in tasks:
            audits.append(auditor.audit(task))
            pulse.said()
            print(line(audits[-1], width), file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        print(as_json(audits, source=args.source, refused=[one.reason for one in refused]))
    else:
        print(*(f"refused: {one.reason}" for one in refused), *summary(audits), sep="\n")
    return int(any(audit.flagged for audit in audits))


def line(audit: "Audit", width: int) -> str:
    """One task for people: status, the best answer and its margin under our rule, how it was scaled, why."""
    answer, margin = audit.best()
    best = f"{answer} {margin:.3g}" if answer else ""
    sizes = " ".join(f"{name}={old}->{new}" for name, (old, new) in audit.scaled.items())
    notes = "; ".join(part for part in (audit.reason, *audit.notes) if part)
    return f"{audit.task_id:{width}}  {audit.status:10}  {best:20}  {audit.seconds:5.1f} s  {sizes}  {notes}".rstrip()
