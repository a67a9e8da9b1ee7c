"""`kernelmill replay RUN --learner | --kernels | --rewards`: do a part of a run again, from its record alone.

--learner  train the run's steps again on the same episodes in the same order, without broker, generators or evaluators,
           and say of each step whether weights and figures are the run's, bit by bit. With overrides: how they differ.
--kernels  judge the kernels again that the run's record holds, with the judge of today, and say which verdicts are
           others: which rewards were paid wrongly, which good kernels were refused.
--rewards  score the verdicts of the record again, with another reward, without judging anything.

Nothing of the run's own is touched: results go to RUN/replay, or to --out. Overrides are settings of the replay:

    kernelmill replay demo --learner
    kernelmill replay demo --learner --from 20 learner.lr=1e-4 learner.objective=gspo
    kernelmill replay demo --kernels --only pass
    kernelmill replay demo --kernels --task 'starter/*' --last 500 --sample 100 judge.draws=5
    kernelmill replay demo --rewards reward.shape=kevin

An episode stays as it was played, also where another reward or verdict would have ended it elsewhere. Exit code 0 when
all is as it was in the run; 1 when a verdict is another, or without overrides a step or a reward; 2 for bad usage.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.usage import UsageError

if TYPE_CHECKING:
    from configs.schema import RunConfig

KINDS = ("pass", "fail", "unsupported", "infra")
_OF = {
    "--from": ("first", ("learner",)),
    "--to": ("last_step", ("learner",)),
    "--task": ("task", ("kernels", "rewards")),
    "--last": ("last", ("kernels", "rewards")),
    "--only": ("only", ("kernels",)),
    "--sample": ("sample", ("kernels",)),
    "--seed": ("seed", ("kernels",)),
}
"""Option -> its place in the arguments, and what it belongs to."""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; nothing here imports torch."""
    parser = subparsers.add_parser(
        "replay",
        help="a run's learner again from its record, or its kernels judged or scored again",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo)")
    what = parser.add_mutually_exclusive_group(required=True)
    for name, text in (
        ("learner", "train its steps again"),
        ("kernels", "judge its kernels again"),
        ("rewards", "score its verdicts again, without judging"),
    ):
        what.add_argument(f"--{name}", dest="what", action="store_const", const=name, help=text)
    steps = parser.add_argument_group("with --learner")
    steps.add_argument(
        "--from", dest="first", type=int, metavar="STEP",
        help="the first step, and the first one with the overrides; steps between the checkpoint before it and it are "
        "made on the way (default: the first that is possible)",
    )  # fmt: skip
    steps.add_argument("--to", dest="last_step", type=int, metavar="STEP", help="the last step (default: the newest)")
    choice = parser.add_argument_group("with --kernels and --rewards")
    choice.add_argument(
        "--task", action="append", metavar="PATTERN", help="only these tasks, e.g. 'starter/l1_*'; may be given again"
    )
    choice.add_argument("--last", type=int, metavar="N", help="only the N episodes that ended last (default: all)")
    kernels = parser.add_argument_group("with --kernels")
    kernels.add_argument(
        "--only", action="append", choices=KINDS, help="only kernels that the run gave this verdict; may be given again"
    )
    kernels.add_argument("--sample", type=int, metavar="N", help="only N kernels of these, drawn by chance")
    kernels.add_argument("--seed", type=int, help="of the draw (default 0)")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where results go (default: replay/ in the run's folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON; lines go to stderr")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the replay, e.g. learner.lr=1e-4"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 or 1; raises RecordError, ConfigError, TaskError, JudgeError or UsageError with what to do."""
    from configs.load import load_standing
    from core.record import cuts, reading
    from runners.interrupts import say
    from runners.preflight import check_writable

    for option, (name, owners) in _OF.items():
        value = getattr(args, name)
        if value is not None and args.what not in owners:
            raise UsageError(f"{option} goes with {' or '.join(f'--{owner}' for owner in owners)}, not --{args.what}")
        if option in ("--last", "--sample") and value is not None and value < 1:
            raise UsageError(f"{option} {value}: wanted at least 1")
    folder = reading.run_folder(args.run_folder)
    load_standing(folder / "config.json")
    args.out = args.out or folder / "replay"
    refuse_own(folder, args.out)
    check_writable(args.out.absolute(), str(args.out))
    for line in cuts.left_out(folder):
        if not line.startswith("record/metrics"):  # not looked at here
            say(f"kernelmill replay: {folder}: {line}")
    if args.what == "learner":
        from runners import replay_learner

        return replay_learner.run(args, folder)
    from runners import replay_kernels

    return replay_kernels.judge(args, folder) if args.what == "kernels" else replay_kernels.score(args, folder)


def refuse_own(folder: Path, out: Path) -> None:
    """Raises UsageError where results would stand among what the run writes itself."""
    from core.run_folder import RunFolder

    own = RunFolder(folder)
    places = (own.root, own.record, own.checkpoints, own.weights, own.logs, own.nats)
    where = out.resolve()
    for place in places:
        if where == place.resolve() or (place is not own.root and place.resolve() in where.parents):
            raise UsageError(f"--out {out} is a place of the run's own files: choose another folder")


def named(out: Path, what: str, overrides: list[str]) -> Path:
    """The file of a result: a replay with overrides does not write over the one without, or with others."""
    from core.identity import digest

    return out / (f"{what}-{digest(*overrides, size=4)}.json" if overrides else f"{what}.json")


def config_of(folder: Path, overrides: Iterable[str]) -> "RunConfig":
    from configs.load import load

    return load(folder / "config.json", list(overrides))
