"""How a run stands, in words."""

from core.flow.ledger import Ledger


def standing(ledger: Ledger, written: bool | None) -> str:
    """`finished`, `running, at step 3 of 12`, `stopped at step 4 of 12`.

    written: whether somebody writes its record now; None where that is not known.
    """
    if ledger.finished:
        return "finished"
    at = f"at step {ledger.step}" + (f" of {ledger.steps}" if ledger.steps else "")
    return f"stopped {at}" if written is False else f"running, {at}" if written else f"not finished, {at}"
