"""`kernelmill demo`: the whole story on this machine, in one command.

    held-out tasks with the shipped policy -> `up` -> the same tasks, sampled the same way, with the trained policy
    -> report.html

Everything in between is the real system: real actors, real broker, real judge.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.record.heldout import HeldOut

RECIPE = Path(__file__).parents[1] / "configs" / "demo.toml"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("demo", help="watch reinforcement learning work, on two cores and no GPU")
    parser.add_argument("--steps", type=int, default=None, help="optimizer steps (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    parser.add_argument("--json", default="", metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--folder", default="", help="where the run folder is made (default: runs)")
    parser.add_argument("--config", default=str(RECIPE), help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="changes to the recipe")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from configs.load import load
    from core.record.heldout import AFTER, BEFORE
    from core.run_folder import RunFolder
    from runners.preflight import check, check_output, check_run_folder
    from runners.up import run_config
    from runners.usage import UsageError

    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps}: wanted at least 1")
    check_output(args.json, "--json")
    started = time.monotonic()
    name = time.strftime(f"demo-s{args.seed}-%m%d-%H%M%S")
    chosen = [f"run.seed={args.seed}", f"run.name={name}"]
    chosen += [f"run.steps={args.steps}"] if args.steps else []
    chosen += [f'run.folder="{args.folder}"'] if args.folder else []
    config = load(args.config, [*chosen, *args.overrides])
    check(config, args.config)
    folder = RunFolder(Path(config.run.folder) / config.run.name)
    check_run_folder(folder.root)
    folder.config.write_text(config.model_dump_json(indent=2))

    _say("1/3 held-out tasks, before training")
    _evaluate(folder, config.model.path, folder.root / BEFORE)
    _say(f"2/3 training: {config.run.steps} {'step' if config.run.steps == 1 else 'steps'}")
    if code := run_config(config, goes_on=True):
        return code
    _say("3/3 the same held-out tasks, after training")
    trained = folder.root / "policy"
    _export(folder, trained, config.run.steps)
    _evaluate(folder, str(trained), folder.root / AFTER, config.run.steps)

    from runners.report import build_report, tell_left_out

    report = build_report(folder.root)
    tell_left_out("demo", folder.root)
    figures = summary(folder, config, time.monotonic() - started)
    if args.json:
        import json

        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
    _print(figures, report)
    return 0 if figures["ledger_balanced"] else 1


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)


def _evaluate(folder: Any, model: str, out: Path, version: int = 0) -> None:
    """In a process of its own, so that its memory is free again when the run starts."""
    import signal
    import subprocess

    from bus.server import die_with_parent
    from runners import interrupts

    words = ["-m", "runners.cli", "evaluate", "--config", str(folder.config), "--model", model, "--out", str(out)]
    words += ["--version", str(version)]
    # Away from this terminal's Ctrl-C, which is handed on once, and so that it ends with this process.
    child: subprocess.Popen[bytes] | None = None

    def stop() -> None:
        if child is None:  # it is being started: as any command
            raise KeyboardInterrupt
        child.send_signal(signal.SIGINT)

    with interrupts.stop_or_end("demo", stop):  # from before it is there: no moment is nobody's
        child = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent()
        )
        code = child.wait()
    if code < 0:  # before it had words of its own
        print("kernelmill demo: interrupted", file=sys.stderr)
    if code:
        raise SystemExit(interrupts.INTERRUPTED if code < 0 else code)
    figures = _held_out(out).figures
    names = {"correct at turn 1": "correct/by_turn_1", "by turn 2": "correct/by_turn_2", "reward": "reward/mean"}
    print(", ".join(f"{words} {figures[name]:.3f}" for words, name in names.items() if name in figures), flush=True)


def _held_out(path: Path) -> "HeldOut":
    from core.record import heldout

    found = heldout.load(path)
    if found is None:
        raise heldout.RecordError(f"{path} was written and is gone: leave a demo's folder where it is until its end")
    return found


def _export(folder: Any, out: Path, step: int) -> None:
    from core.checkpoints import store
    from core.checkpoints.export import export_huggingface

    export_huggingface(store.step_folder(folder.checkpoints, step), out)


def summary(folder: Any, config: Any, wall_s: float) -> dict[str, Any]:
    """The figures of a finished demo, from its record and the two held-out files. Where no first turn failed, nothing
    was left to repair, and the repair share counts as 1."""
    from core.record import heldout, reading
    from runners.report.data import first_and_last

    before, after = _held_out(folder.root / heldout.BEFORE), _held_out(folder.root / heldout.AFTER)
    ledger = reading.ledger(folder.root)
    steps = [step for step in reading.surviving_steps(reading.steps(folder.root)) if step.kind == "step"]
    facts = list(reading.facts(folder.root))
    reward_first, reward_last, _ = first_and_last([step.metrics["reward/mean"] for step in steps])
    train_s = steps[-1].at - min(fact.at for fact in facts if fact.kind == "admitted")
    return {
        "held_out_correct_before": before.figures["correct/by_turn_1"],
        "held_out_correct_after": after.figures["correct/by_turn_1"],
        "held_out_repair_before": before.figures.get("repair/turn_2", 1.0),
        "held_out_repair_after": after.figures.get("repair/turn_2", 1.0),
        "held_out_reward_before": before.figures["reward/mean"],
        "held_out_reward_after": after.figures["reward/mean"],
        "held_out_tasks": after.tasks,
        "reward_first": reward_first,
        "reward_last": reward_last,
        "steps": len(steps),
        "wall_s": round(wall_s, 1),
        "ledger_balanced": ledger.balanced,
        "ledger_episodes": ledger.episodes.line(),
        "episodes_per_s": round(ledger.episodes.trained / train_s, 2),
        "versions_published": sum(fact.kind == "weights_published" for fact in facts),
        "staleness_max": max(step.metrics["staleness/max"] or 0.0 for step in steps),
        "seed": config.run.seed,
    }


def _print(figures: dict[str, Any], report: Path) -> None:
    def share(name: str) -> str:
        return f"{100 * figures[name]:.0f} %"

    print()
    print(f"held-out tasks correct at turn 1   {share('held_out_correct_before')} -> {share('held_out_correct_after')}")
    print(f"failed first turns repaired        {share('held_out_repair_before')} -> {share('held_out_repair_after')}")
    print(f"mean reward, first and last steps  {figures['reward_first']:.2f} -> {figures['reward_last']:.2f}")
    balanced = "balanced" if figures["ledger_balanced"] else "NOT balanced"
    print(f"ledger                             {balanced}: {figures['ledger_episodes']}")
    print(f"time                               {figures['wall_s'] / 60:.1f} minutes")
    print(f"report                             {report}")
