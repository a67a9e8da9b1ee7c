"""`kernelmill report RUN_FOLDER`: the run as one HTML file that needs nothing else, no network and no script."""

import argparse
import sys
from pathlib import Path


def build_report(run_folder: str | Path) -> Path:
    """Write run_folder/report.html from what the run left behind, at any moment of the run. Returns its path; raises
    `core.record.files.RecordError` when there is no record to read."""
    from core.record.files import replace
    from core.record.reading import run_folder as checked
    from runners.report.data import gather
    from runners.report.page import page

    folder = checked(run_folder)
    path = folder / "report.html"
    replace(path, page(gather(folder)).encode())
    return path


def tell_left_out(command: str, run_folder: Path) -> None:
    """A line on stderr for each file of the run that is not whole."""
    from core.record import cuts, heldout

    for line in (*cuts.left_out(run_folder), *heldout.broken(run_folder)):
        print(f"kernelmill {command}: {run_folder}: {line}", file=sys.stderr)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "report",
        help="write the run's report.html",
        description="Write RUN_FOLDER/report.html: one file with plots, ledger, held-out figures and kernels before "
        "and after training. Works at any moment of a run.",
    )
    parser.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from core.record.files import RecordError

    try:
        path = build_report(args.run_folder)
    except RecordError as error:
        print(f"kernelmill report: {error}", file=sys.stderr)
        return 2
    tell_left_out("report", path.parent)
    print(path)
    return 0
