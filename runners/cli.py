"""`kernelmill`: the one command. Parses first and imports what a subcommand needs afterwards, so that help is instant.

Each subcommand lives in a module of its own with `add_parser(subparsers)` and `run(args) -> int`. Exit codes: 0 done,
1 the answer is no, 2 bad usage or bad input (one clear line on stderr), 130 interrupted.
"""

import argparse
import importlib
import sys
from typing import Any

from runners.usage import Parser

COMMANDS = (
    "up",
    "run_actor",
    "demo",
    "judge",
    "gateway",
    "tasks",
    "audit",
    "sft",
    "evaluate",
    "export",
    "ledger",
    "report",
    "plan",
    "best",
    "optimize",
    "replay",
    "import_config",
    "inspect",
    "doctor",
)
"""Modules of `runners`, in the order in which help lists them."""


class _Version(argparse.Action):
    """Looked up when it is asked for: every command would wait for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"kernelmill {version('kernelmill')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="kernelmill",
        description="Train language models to write fast GPU kernels by asynchronous multi-turn RL.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and leave")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"runners.{name}").add_parser(subparsers)
    return top


def main(argv: list[str] | None = None) -> int:
    top = parser()
    args, rest = top.parse_known_args(argv)
    if rest:  # argparse gives up on positionals that come after options: overrides may stand anywhere
        strange = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(args, "overrides")]
        if strange:
            top.prog += f" {args.command}"
            top.error(f"unrecognized arguments: {' '.join(strange)}{_behind_a_flag(strange[0], argv)}")
        args.overrides = [*args.overrides, *rest]
    try:
        return args.run(args)
    except KeyboardInterrupt:
        from runners import interrupts

        interrupts.end_at_next()  # of threads that Python waits for at its end
        print(f"kernelmill {args.command}: interrupted", file=sys.stderr)
        exec("")  # had it come in another `exec` of text, as in an import, Python would end by the signal
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        cause = first_cause(error)
        if is_users_fault(cause):
            print(f"kernelmill {args.command}: {cause}", file=sys.stderr)
            return 2
        if type(cause).__name__ == "NoConnection":  # an outage, not a bug: whoever supervises this may try again
            print(f"kernelmill {args.command}: {cause}: is the broker gone?", file=sys.stderr)
            return 1
        if type(cause).__name__ == "Fenced":
            print(f"kernelmill {args.command}: {cause}; this one leaves", file=sys.stderr)
            return 1
        if isinstance(cause, PermissionError | IsADirectoryError) and cause.filename is not None:
            print(f"kernelmill {args.command}: {cause.filename}: {cause.strerror}", file=sys.stderr)
            return 2
        from runners.packages import explained

        if broken := explained(cause):
            print(f"kernelmill {args.command}: {broken.line}", file=sys.stderr)
            return 2
        raise


def _behind_a_flag(word: str, argv: list[str] | None) -> str:
    """Where a value was given to an option that takes none."""
    words = sys.argv[1:] if argv is None else argv
    before = words[words.index(word) - 1] if word in words[1:] else ""
    return f"; {before} takes no value" if before.startswith("--") and not word.startswith("-") else ""


def first_cause(error: Exception) -> Exception:
    """What a task group was ended by; a group has nothing to say of its own."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def is_users_fault(error: Exception) -> bool:
    """Errors whose text is written for the person at the keyboard; everything else is a bug and shows its trace."""
    names = {
        "UsageError",
        "ConfigError",
        "TaskError",
        "RecordError",
        "TrackerError",
        "JudgeError",
        "GoingNowhere",
        "AuditorError",
        "KeptError",
        "ModelError",
        "RecipeError",
        "ParityError",
    }
    names |= {"Damaged", "NoRoom", "BusyPort", "StoreBusy", "ServerMissing", "ServerFailed", "Unreachable"}
    return any(base.__name__ in names for base in type(error).__mro__)


if __name__ == "__main__":
    sys.exit(main())
