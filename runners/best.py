"""`kernelmill best RUN`: the best kernel of each task of a run, judged again and written as files.

What a run measured once, in the middle of everything, and chose for being the fastest is too good on average: so the
fastest few of each task are judged anew, and the figures are those of now. RUN/best then holds kernel.py, reference.py
and verdict.json for each task, and best.json for all of them. Works at any moment of a run; called again, it judges
what is new. Overrides judge elsewhere or otherwise:

    kernelmill best demo
    kernelmill best runs/mine judge.device_class=h100 judge.speed=measured

Exit code 0 when a kernel is kept, 1 when none passed, 2 for bad usage.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runners.pulse import Pulse, lasting

if TYPE_CHECKING:
    from configs.schema import RunConfig
    from core.record.best import Kernel
    from core.record.best_folder import BestFolder, Row
    from core.tasks.task import Task

AGAIN = 3


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; nothing here imports torch."""
    parser = subparsers.add_parser(
        "best",
        help="the best kernel of each task, judged again, as files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to (default: best/ in the run's folder)")
    parser.add_argument(
        "--task", action="append", default=[], metavar="PATTERN",
        help="only these tasks, e.g. 'starter/l1_*'; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--again", type=int, default=AGAIN, metavar="N",
        help=f"kernels of each task that are judged again, the fastest of the run (default {AGAIN})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print best.json instead of lines")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="overrides, e.g. judge.workers=8")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or 1 when no kernel passed; raises RecordError, ConfigError, TaskError, JudgeError or UsageError with what to
    do."""
    from configs.load import load
    from core.record import best, cuts, reading
    from core.record.best_folder import INDEX, BestFolder, locked
    from runners import interrupts
    from runners.playing import check_cards, check_judge_here
    from runners.preflight import check_writable
    from runners.usage import UsageError

    if args.again < 1:
        raise UsageError(f"--again {args.again}: wanted at least 1")
    folder = reading.run_folder(args.run_folder)
    config = load(folder / "config.json", args.overrides)
    check_cards(config)
    check_judge_here(config)
    out = args.out or folder / "best"
    check_writable(out.absolute(), f"--out {out}" if args.out else str(out))
    for line in cuts.left_out(folder):
        print(f"kernelmill best: {folder}: {line}", file=sys.stderr)
    began = time.monotonic()
    with Pulse(lambda: f"kernelmill best: reading {folder / 'record'}, {lasting(time.monotonic() - began)}"):
        written = best.passed(folder)
    if not written:
        print(f"kernelmill best: no kernel of {folder} has passed yet", file=sys.stderr)
        if args.json:
            print(json.dumps({"run": config.run.name, "judges": {}, "rows": []}))
        return 1
    chosen = _chosen(written, args.task)
    jobs = _jobs(config, {task_id: kernels[: args.again] for task_id, kernels in chosen.items()})
    progress = Progress(len(jobs), sys.stderr if args.json else sys.stdout)
    with locked(out):
        kept = BestFolder(out, config.run.name)
        with Pulse(progress.line):
            interrupts.run("best", _judged(config, jobs, kept, progress), "the judge's workers")
        if args.json:
            print((out / INDEX).read_text(), end="")
    return _summary([kept.row(task.task_id) for task, _ in jobs], kept, sys.stderr if args.json else sys.stdout)


def _chosen(written: "dict[str, list[Kernel]]", patterns: list[str]) -> "dict[str, list[Kernel]]":
    from fnmatch import fnmatchcase

    from runners.usage import UsageError

    for pattern in patterns:
        if not any(fnmatchcase(task_id, pattern) for task_id in written):
            raise UsageError(
                f"--task {pattern}: no kernel of such a task has passed; tasks with one: "
                f"{', '.join(list(written)[:5])}{', ...' if len(written) > 5 else ''}"
            )
    return {
        task_id: kernels
        for task_id, kernels in written.items()
        if not patterns or any(fnmatchcase(task_id, pattern) for pattern in patterns)
    }


def _jobs(config: "RunConfig", chosen: "dict[str, list[Kernel]]") -> "list[tuple[Task, list[Kernel]]]":
    """Each task with the kernels that are to be judged again."""
    from runners.judging_again import tasks_by_id

    tasks = tasks_by_id(config, chosen, "best")
    return [(tasks[task_id], kernels) for task_id, kernels in chosen.items() if task_id in tasks]


class Progress:
    """A line for each task that is decided, and one now and then of how far it is."""

    def __init__(self, total: int, out: TextIO) -> None:
        self._total = total
        self._out = out
        self._done = 0
        self._judging = False
        self._started = time.monotonic()

    def begin(self, stand: int) -> None:
        """`stand`: tasks that an earlier call decided."""
        self._judging, self._done = True, stand

    def told(self, row: "Row") -> None:
        print(line_of(row), file=self._out, flush=True)

    def decided(self, row: "Row") -> None:
        self._done += 1
        self.told(row)

    def line(self) -> str:
        lasts = lasting(time.monotonic() - self._started)
        if not self._judging:
            return f"kernelmill best: starting the judge, for {lasts}"
        return f"kernelmill best: {self._done} of {self._total} tasks, {lasts}"


async def _judged(
    config: "RunConfig", jobs: "list[tuple[Task, list[Kernel]]]", kept: "BestFolder", progress: Progress
) -> None:
    import asyncio

    from runners.judging_again import judge_of, judged_again
    from runners.playing import key_of, pool_of

    pool = pool_of(config)
    keys = [tuple(key_of(config, task, kernel.source) for kernel in kernels) for task, kernels in jobs]

    def standing() -> list[bool]:
        kept.judge_with(judge_of(pool))
        return [kept.stands(task.task_id, judged) for (task, _), judged in zip(jobs, keys, strict=True)]

    try:
        stand = [False] if pool.settings.on_gpu else standing()  # which GPU it is, the pool's workers see
        if not all(stand):
            await pool.start()
            stand = standing()
        progress.begin(sum(stand))
        for (task, _), stood in zip(jobs, stand, strict=True):
            if stood:
                progress.told(kept.row(task.task_id))

        async def one(task: "Task", kernels: "list[Kernel]", judged: tuple[str, ...]) -> None:
            kernel, verdict = await judged_again(pool, task, kernels, judged)
            if verdict.kind == "pass":
                kept.keep(kernel, task.source, verdict, judged)
            else:
                kept.refuse(kernel, verdict, judged)
            progress.decided(kept.row(task.task_id))

        async with asyncio.TaskGroup() as group:
            for (task, kernels), judged, stood in zip(jobs, keys, stand, strict=True):
                if not stood:
                    group.create_task(one(task, kernels, judged))
    finally:
        await pool.stop()


def line_of(row: "Row") -> str:
    """A task for people: its speed now, who wrote it; or why there is nothing."""
    from runners.judging_again import speed_in_words
    from runners.live import clean

    if row.state != "kept":
        return clean(f"{row.task_id}  {row.state}: {row.why}")
    often = "once" if row.times == 1 else f"{row.times} times"
    return clean(f"{row.task_id}  {speed_in_words(row)}; version {row.version}, turn {row.turn + 1}, written {often}")


def _summary(rows: "list[Row]", folder: "BestFolder", out: TextIO) -> int:
    kept, inside = (sum(row.state == "kept" for row in some) for some in (rows, folder.rows))
    rest = "".join(
        f"; {count} {words}"
        for state, words in (
            ("failed", "did not pass again"),
            ("unsupported", "this judge can't tell"),
            ("unjudged", "not judged for trouble on our side: call this again"),
        )
        if (count := sum(row.state == state for row in rows))
    )
    tasks = "task has" if len(rows) == 1 else "tasks have"
    others = f", beside {inside - kept} of other calls" if inside > kept else ""
    print(f"{kept} of {len(rows)} {tasks} a kernel in {folder.root}{others}{rest}", file=out)
    return 0 if kept else 1
