"""`kernelmill ledger RUN_FOLDER`: does every episode that was submitted have a fate, and only one?

Exit code 0 when the account balances, 1 when it does not, 2 when there is no record to read.
"""

import argparse
import json
import sys

SHOWN = 20
"""Problems printed before the rest is only counted."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ledger",
        help="check that submitted = trained + rejected + pending",
        description="Check a run's account, from its record alone: submitted = trained + rejected(reason) + pending, "
        "for groups and episodes. Exit code 0: balanced; 1: not; 2: no record to read.",
    )
    parser.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo)")
    parser.add_argument("--json", action="store_true", help="print the whole account as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from core.record import cuts, reading
    from core.record.files import RecordError
    from core.record.record import EPISODES, FACTS, FILES, STEPS, being_written
    from runners.standing import standing

    try:
        folder = reading.run_folder(args.run_folder)
        ledger, left_out = reading.ledger(folder), cuts.left_out(folder)
    except RecordError as error:
        print(f"kernelmill ledger: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({**ledger.as_dict(), "left_out": left_out}, indent=2))
    else:
        print(f"groups    {ledger.groups.line()}")
        print(f"episodes  {ledger.episodes.line()}")
        if ledger.episodes.pending:
            print(f"          {ledger.waiting} of the pending have ended and wait for the learner")
        rolled = f", {ledger.voided_steps} taken back by rollbacks" if ledger.voided_steps else ""
        lives = "1 incarnation" if ledger.incarnations == 1 else f"{ledger.incarnations} incarnations"
        state = standing(ledger, being_written(folder))
        print(f"chain     {ledger.step} steps, {lives} of the learner{rolled}, {state}")
        for problem in ledger.problems[:SHOWN]:
            print(f"problem   {problem}")
        if len(ledger.problems) > SHOWN:
            print(f"          … and {len(ledger.problems) - SHOWN} more; all with --json")
        for line in left_out:
            print(f"cut off   {line}")
        unread = any(
            line.startswith(f"record/{FILES[stream]}") for line in left_out for stream in (FACTS, STEPS, EPISODES)
        )
        so_far = ", as far as the record can be read" if unread else ""
        print(f"{'balanced' if ledger.balanced else 'NOT balanced'}{so_far}")
    return 0 if ledger.balanced else 1
