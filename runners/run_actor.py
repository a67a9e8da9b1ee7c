"""`kernelmill run ACTOR --config CONFIG`: one actor in this process.

on a cluster       kernelmill run generator --config my.toml --name generator-7     (bus.url in the config)
under `up`         the supervisor starts it with the run folder, where run.json says how to reach the bus
"""

import argparse
import sys
from typing import Any

KINDS = ("sampler", "generator", "evaluator", "learner", "checkpointer", "recorder", "gateway")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("run", help="run one actor (for clusters; `up` starts them all)")
    parser.add_argument("actor", choices=KINDS)
    parser.add_argument("--config", required=True, help="the run's TOML file, the same for every actor")
    parser.add_argument("--name", default="", help="unique name of this actor (default: kind-hostname-pid)")
    parser.add_argument("--run-folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="changes to the recipe")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from runners.actor_process import run_actor

    return run_actor(args)


if __name__ == "__main__":
    from runners.cli import main

    sys.exit(main(["run", *sys.argv[1:]]))
