"""`kernelmill import-config SCRIPT`: a launch script of slime, TritonForge or verl as a recipe of ours.

The script is read and never run. The recipe goes to --out, or to stdout; what could not be carried over stands at its
end and on stderr, each with its reason. docs/switching.md has the table.

    kernelmill import-config run-qwen3-8B.sh --out configs/mine.toml
    kernelmill up configs/mine.toml --dry-run
"""

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; nothing here imports torch."""
    parser = subparsers.add_parser(
        "import-config",
        help="a launch script of slime, TritonForge or verl as a recipe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="their launch script (bash), or verl's YAML file")
    parser.add_argument("--out", type=Path, metavar="FILE.toml", help="where to (default: stdout)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when a recipe was written, also with options left over; raises UsageError or ConfigError with what to do."""
    from configs.importing.importer import import_file
    from runners.preflight import check_output
    from runners.usage import UsageError

    if args.out is not None:
        if args.out.suffix != ".toml":
            raise UsageError(f"--out {args.out}: wanted a name that ends in .toml, as recipes do")
        if args.out.exists() or args.out.is_symlink():
            raise UsageError(f"--out {args.out} is there already: move it away, or choose another file")
        check_output(str(args.out), "--out")
    found = import_file(args.script)
    for one in found.left:
        print(f"left over: {one.told()}", file=sys.stderr)
    if args.out is None:
        print(found.toml, end="")
    else:
        try:
            with args.out.open("x", encoding="utf-8") as file:
                file.write(found.toml)
        except FileExistsError:
            raise UsageError(f"--out {args.out} is there already: move it away, or choose another file") from None
        print(
            f"{args.out}: {found.mapped} of {found.options} options carried over; {len(found.left)} lines are left over"
        )
    return 0
