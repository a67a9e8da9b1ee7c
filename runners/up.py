"""`kernelmill up CONFIG`: the whole system on this machine, under one supervisor; one Ctrl-C stops all cleanly.

`up` again on the same config resumes where the run stood, and so does `up RUN/config.json`, from wherever it is called.
Settings that do not define the run may be others by then: the first line tells which, and so do a fact and the report's
curves.
"""

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("up", help="run the whole system on this machine; again: resume")
    parser.add_argument("config", help="a TOML recipe, e.g. configs/demo.toml, or a run's own config.json: resume it")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="changes to the recipe")
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, print the resolved config, start nothing"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from configs.load import load
    from runners.preflight import check
    from runners.where import where_it_lies

    config = where_it_lies(Path(args.config), load(args.config, args.overrides), args.overrides)
    check(config, args.config)
    if args.dry_run:
        print(config.model_dump_json(indent=2))
        return 0
    return run_config(config)


def run_config(config: Any, note: str = "", *, goes_on: bool = False) -> int:
    """Run to the end; 0 when the run finished, 1 when it was given up, 130 when it was interrupted.

    goes_on: more is done with a run that finished, which gets its report then.
    """
    import asyncio

    from configs.differences import told
    from core.run_folder import RunFolder
    from runners import interrupts
    from runners.local import other_than_before, refuse_another_run, refuse_second_supervisor
    from runners.supervise import supervise

    folder = RunFolder(Path(config.run.folder) / config.run.name)
    refuse_another_run(folder, config)
    if (done := finished_at(folder, config.run.steps)) is not None:
        print(
            f"run {config.run.name!r} is finished at step {done}: raise run.steps to go on, or choose another run.name"
        )
        return 0
    lock = refuse_second_supervisor(folder)
    try:
        if changes := other_than_before(folder, config):
            print(told(changes), flush=True)
        code = asyncio.run(supervise(config, note))
        if code == interrupts.INTERRUPTED:
            interrupts.end_at_next()
        if code or not goes_on:
            write_report(folder)
        return code
    finally:
        lock.close()


def finished_at(folder: Any, wanted: int) -> int | None:
    """Last step of a run that finished with as many steps as are wanted now; None while there is more to do."""
    from core.record import reading

    if not (folder.record / "steps.jsonl").exists():
        return None
    ledger = reading.ledger(folder.root, wanted)
    return ledger.step if ledger.finished else None


def write_report(folder: Any) -> None:
    """The report of what there is so far."""
    from core.record import reading
    from runners.report import build_report, tell_left_out

    if (folder.record / "steps.jsonl").exists() and any(step.kind == "step" for step in reading.steps(folder.root)):
        try:
            print(f"report: {build_report(folder.root)}")
            tell_left_out("up", folder.root)
        except OSError as error:  # what ended the run, a full disk say, may keep it from being written
            print(f"no report: {error}; `kernelmill report {folder.root}` makes it later", file=sys.stderr)
