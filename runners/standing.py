"""How a run stands, in words."""

from pathlib import Path

from core.flow.ledger import Ledger, settle


def standing(ledger: Ledger, written: bool | None) -> str:
    """`finished`, `running, at step 3 of 12`, `stopped at step 4 of 12`.

    written: whether somebody writes its record now; None where that is not known.
    """
    if ledger.finished:
        return "finished"
    at = f"at step {ledger.step}" + (f" of {ledger.steps}" if ledger.steps else "")
    return f"stopped {at}" if written is False else f"running, {at}" if written else f"not finished, {at}"


def chain_of(folder: Path, wanted: int | None = None) -> Ledger | None:
    """What the chain alone says of a run's steps, at little cost; None where it can't be read.

    wanted: steps that the run is to make, where another config than the run's own says so.
    """
    from core.record import reading
    from core.record.files import RecordError

    try:
        steps = reading.steps_wanted(folder) if wanted is None else wanted
        return settle((), reading.steps(folder), steps_wanted=steps)
    except RecordError:
        return None
