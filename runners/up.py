"""`kernelmill up CONFIG`: the whole system on this machine, under one supervisor; one Ctrl-C stops all cleanly.

`up` again on the same config resumes where the run stood.
"""

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("up", help="run the whole system on this machine; again: resume")
    parser.add_argument("config", help="a TOML recipe, e.g. configs/demo.toml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, print the resolved config, start nothing"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from configs.load import load
    from runners.preflight import check

    config = load(args.config, args.overrides)
    check(config, args.config)
    if args.dry_run:
        print(config.model_dump_json(indent=2))
        return 0
    return run_config(config)


def run_config(config: Any, note: str = "") -> int:
    """Run to the end; 0 when the run finished, 1 when it was given up, 130 when it was interrupted."""
    import asyncio

    from core.run_folder import RunFolder
    from runners.local import refuse_second_supervisor
    from runners.supervise import supervise

    lock = refuse_second_supervisor(RunFolder(Path(config.run.folder) / config.run.name))
    try:
        return asyncio.run(supervise(config, note))
    finally:
        lock.close()
