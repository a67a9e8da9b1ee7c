"""`kernelmill evaluate --config CONFIG`: a policy on held-out tasks, with an engine and judges in this process.

Prints the figures, and with --out writes them with every kernel and its verdict as JSON. The same config, tasks and
seed sample the same way, so two policies compare on equal terms:

    kernelmill evaluate --config configs/demo.toml --out before.json
    kernelmill export runs/demo
    kernelmill evaluate --config configs/demo.toml --model runs/demo/policy --out after.json
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.pulse import Pulse, lasting

if TYPE_CHECKING:
    from configs.schema import RunConfig
    from core.episodes.episode import Episode
    from core.episodes.heldout_figures import HeldOut
    from core.tasks.task import Task


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the subcommand; nothing here imports torch."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "evaluate",
        help="measure a policy on held-out tasks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, type=Path, help="recipe: tasks, prompts, sampling, judge, reward")
    parser.add_argument("--model", default="", help="policy to measure (default: the recipe's model.path)")
    parser.add_argument("--tasks", type=int, metavar="N", help="only the first N held-out tasks (default: all)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="episodes of each task (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (default 0)")
    parser.add_argument("--version", type=int, default=0, help="policy version to note in the file (default 0)")
    parser.add_argument("--out", type=Path, help="write figures, kernels and verdicts to this file")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="overrides, e.g. rollout.threads=2"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """0; raises UsageError, ConfigError or TaskError when the config, the model or the tasks can't be used."""
    from configs.load import load
    from core.record.heldout import save
    from runners import interrupts
    from runners.playing import check_cards
    from runners.preflight import check_engine, check_model, check_output, tasks_of
    from runners.tasks import tell_left_out
    from runners.usage import UsageError

    for option, count in (("--tasks", args.tasks), ("--samples", args.samples)):
        if count is not None and count < 1:
            raise UsageError(f"{option} {count}: wanted at least 1")
    check_output(str(args.out or ""), "--out")
    config = load(args.config, [*args.overrides, *([f"model.path={args.model!r}"] if args.model else [])])
    check_model(config, str(args.config))
    check_engine(config)
    check_cards(config)
    tasks = tasks_of(config, "heldout")
    tell_left_out([source.model_dump() for source in config.tasks.heldout])
    chosen = tasks[: args.tasks]
    progress = Progress(len(chosen) * args.samples)
    with Pulse(progress.line):
        heldout = interrupts.run(
            "evaluate",
            measure(
                config, chosen, samples_per_task=args.samples, seed=args.seed, step=args.version, progress=progress
            ),
            "the engine and the judge's workers",
        )
    for name, value in heldout.figures.items():
        print(f"{name:32} {value:.4g}")
    if args.out:
        save(heldout, args.out)
    return 0


class Progress:
    """How far an evaluation is, in a line."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._correct = 0
        self._started = time.monotonic()
        self._begun = 0.0

    def begin(self) -> None:
        """The engine and the judge are there."""
        self._begun = time.monotonic()

    def ended(self, episode: "Episode") -> None:
        self._done += 1
        self._correct += any(turn.verdict is not None and turn.verdict.correct for turn in episode.turns)

    def line(self) -> str:
        now = time.monotonic()
        if not self._begun:
            return f"kernelmill evaluate: starting the engine and the judge, for {lasting(now - self._started)}"
        ran_s = now - self._begun
        left = f", about {lasting(ran_s / self._done * (self._total - self._done))} left" if self._done else ""
        return (
            f"kernelmill evaluate: {self._done} of {self._total} episodes, {self._correct} of them correct, "
            f"{lasting(ran_s)}{left}"
        )


async def measure(
    config: "RunConfig",
    tasks: "list[Task]",
    *,
    samples_per_task: int = 1,
    seed: int = 0,
    step: int | None = None,
    progress: "Progress | None" = None,
) -> "HeldOut":
    """Evaluate the policy in `config.model.path` with an engine and judges of this process's own, on the cards of a
    run's first generator and first evaluator."""
    from runners.playing import at_hand

    async with at_hand(config) as playing:
        if progress:
            progress.begin()
        return await playing.evaluate(
            tasks,
            samples_per_task=samples_per_task,
            seed=seed,
            step=step,
            ended=progress.ended if progress else lambda _: None,
        )
