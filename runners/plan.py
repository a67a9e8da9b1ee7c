"""`kernelmill plan RUN`: how to split cards, or processes, between the learner, generators and judges.

From the stage times that a run has measured (`core.record.measured`), what each split would do (`core.flow.plan`), the
best first, and the lines of a recipe that make it. Exit code 0, or 2 when the run holds too little to say anything.
"""

import argparse
import sys
from typing import Any

from runners.usage import UsageError, not_negative

SHOWN = 8
"""Splits printed before the rest is only counted."""

MOST = 10_000
"""Cards, or processes: every way to split them is looked at."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "plan",
        help="how to split cards between learner, generators and judges, from a run's measured stage times",
        description="What each way to split cards between the learner, generators and judges would do, predicted from "
        "the stage times that a run has measured (a short one will do: about ten steps), the fastest first, with the "
        "lines of a recipe that make it. A run without GPUs is split in processes: generators and judging processes "
        "beside its learner.",
    )
    parser.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo); it may go on")
    parser.add_argument(
        "--cards", type=positive, metavar="N",
        help="cards to split (default: as many as the run used); of a run without GPUs: processes, the learner's "
        "included (default: one more than the run had)",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", metavar="CONFIG.toml",
        help="plan for this recipe's groups, staleness and placing instead of the run's own; model, lengths and turns "
        "are taken to be the run's",
    )  # fmt: skip
    parser.add_argument(
        "--scaling", type=scaling, default=0.9, metavar="SHARE|RUN",
        help="a learner of twice the ranks is so much of twice as fast, 0.5 to 1 (default 0.9, assumed); or another "
        "run of the same model with other ranks, to measure it",
    )  # fmt: skip
    parser.add_argument(
        "--card-gib", type=above_zero, metavar="GIB",
        help="memory of a card, to see how few of them hold the learner; without it, no fewer than the run's ranks are "
        "advised",
    )  # fmt: skip
    parser.add_argument(
        "--cores", type=above_zero, metavar="N",
        help="of a run without GPUs: cores that all processes share (default: this machine's)",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help=f"print every split, not the first {SHOWN}")
    parser.add_argument("--json", action="store_true", help="print what was measured and all predictions as JSON")
    parser.set_defaults(run=run)


def positive(text: str) -> int:
    if not 1 <= not_negative(text) <= MOST:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number from 1 to {MOST}")
    return int(text)


def above_zero(text: str) -> float:
    return _number(text, lambda value: 0 < value < 1e6, "a number above 0")


def scaling(text: str) -> float | str:
    """A share, or the name of a run."""
    if text[:1].isdigit() or text[:1] in "-+.":
        try:
            float(text)
        except ValueError:
            return text
        return _number(text, lambda value: 0.5 <= value <= 1, "0.5 (no faster) to 1 (twice as fast), or a run's folder")
    return text


def _number(text: str, fits: Any, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted {wanted}")
    return value


def run(args: argparse.Namespace) -> int:
    import json

    from core.record.files import RecordError
    from runners.plan_words import as_dict, text

    try:
        made = advice(args)
    except RecordError as error:
        print(f"kernelmill plan: {error}", file=sys.stderr)
        return 2
    print(json.dumps(as_dict(made), indent=2) if args.json else text(made, None if args.all else SHOWN))
    return 0


def advice(args: argparse.Namespace) -> Any:
    """An `Advice` from the command's options. Raises RecordError, ConfigError or UsageError."""
    import os

    from configs import splits
    from configs.load import load
    from core.flow.plan import Assumed, fewest_ranks, predict, ranked, scaling_of
    from core.record import reading
    from runners.plan_words import Advice

    folder = reading.run_folder(args.run_folder)
    ran, found = _measured(folder)
    config = load(args.recipe) if args.recipe else ran
    share, by = args.scaling, ""
    if isinstance(share, str):
        other = reading.run_folder(share)
        try:
            share, by = scaling_of(found, _measured(other)[1]), str(other)
        except ValueError as error:
            raise UsageError(f"--scaling {other}: {error}; give one with other ranks, or a share") from None
    on_cards = found.peak_gib is not None
    generators, workers = max(1, round(found.generators)), max(1, round(found.workers))
    own = splits.own(ran, generators, workers)
    groups = config.sampler.groups_per_step * config.sampler.group_size
    kept = found.episodes_per_step / (ran.sampler.groups_per_step * ran.sampler.group_size)
    assumed = Assumed(
        scaling=share,
        cores=None if on_cards else args.cores or os.cpu_count(),
        episodes_per_step=groups * kept,
        open_episodes=(config.sampler.max_staleness + 1) * groups,
    )
    if on_cards:
        used = len(
            splits.cards_of(ran, "learner") | splits.cards_of(ran, "generator") | splits.cards_of(ran, "evaluator")
        )
        total, fewest = args.cards or used, fewest_ranks(found, args.card_gib)
        ways = splits.on_cards(config, own, total, fewest)
        if not ways and total != used:
            raise UsageError(too_few_cards(config, own, total, fewest, args.card_gib))
    else:
        total = args.cards or own.ranks + generators + workers + 1
        ways = splits.on_processes(own, total)
        if not ways:
            raise UsageError(
                f"--cards {total}: this run has no GPU, so these are processes: its learner's {own.ranks}, a generator "
                f"and a judging process at least, so {own.ranks + 2} or more"
            )
    return Advice(
        folder=folder,
        ran=ran,
        config=config,
        measured=found,
        assumed=assumed,
        own=predict(found, own, own, assumed),
        total=total,
        on_cards=on_cards,
        scaling_by=by,
        best=ranked(found, own, ways, assumed),
    )


def _measured(folder: Any) -> tuple[Any, Any]:
    """A run's config, and what it measured."""
    from configs import splits
    from configs.load import load_standing
    from core.record.files import RecordError
    from core.record.measured import measured
    from core.run_folder import RunFolder

    path = RunFolder(folder).config
    if not path.exists():
        raise RecordError(f"{folder} holds no config.json, so its cards and groups are not known")
    ran = load_standing(path)
    return ran, measured(folder, ran.model_dump(mode="json"), len(splits.cards_of(ran, "evaluator")))


def too_few_cards(config: Any, own: Any, total: int, fewest: int, card_gib: float | None) -> str:
    from configs.splits import fewest_cards

    wanted = fewest_cards(config, own, fewest)
    why = f"cards of {card_gib:g} GiB hold it then" if card_gib else "as many as the run's; --card-gib may allow fewer"
    judges = ", 1 for judges" if own.judge_cards else ""
    size = config.rollout.vllm.tensor_parallel if config.rollout.engine == "vllm" else 1
    return (
        f"--cards {total} can't be split: the learner needs {fewest} ({why}), a generator {size}{judges}; give "
        f"{wanted} or more"
    )
