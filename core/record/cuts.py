"""What of a run's record was cut off, so that who reads it knows what is left out.

`position.json` says how long each file was when it was last known to be whole: a file that is shorter, or gone, was cut
by something else than a crash of its writer, which leaves at most a piece of one record behind that point.
"""

from pathlib import Path

from core.record import files
from core.record.files import RecordError
from core.record.reading import torn
from core.record.record import EPISODES, FACTS, FILES, METRICS, STEPS, positions

_HOLDS = {FACTS: "facts", STEPS: "steps", EPISODES: "episodes", METRICS: "gauges over time"}
_STEP = b'"kind":"step"'


def left_out(run: str | Path) -> list[str]:
    """One line for each file of the record that is not whole: what was cut off, and what is left out for it."""
    run = Path(run)
    told: list[str] = []
    try:
        whole = {stream: size for stream, (_, size) in positions(run / "record" / "position.json").items()}
    except RecordError as error:
        told, whole = [str(error)], {}
    cut: set[str] = set()
    for stream, name in FILES.items():
        path, size, what = run / "record" / name, whole.get(stream, 0), _HOLDS[stream]
        if not path.exists():
            if size:
                told.append(f"record/{name} is missing, it had {size:,} bytes: all {what} are left out")
            elif stream == METRICS and _has_steps(run):
                told.append(f"record/{name} is missing: all {what} are left out")
        elif (there := path.stat().st_size) < size:
            cut.add(stream)
            told.append(
                f"record/{name} is cut off at {there:,} of at least {size:,} bytes: the {what} after that are left out"
            )
    if not (run / "config.json").exists() and _has_steps(run):
        told.append("config.json is missing: the settings are left out")
    known = {stream: size for stream, size in whole.items() if stream not in cut}
    for name, size in torn(run, known).items():
        if name not in {FILES[stream] for stream in cut}:
            told.append(f"record/{name} ends in {size} bytes of a record that was not written to its end; left out")
    return told


def _has_steps(run: Path) -> bool:
    """Gauges are written from the start on, every few seconds: before the first step they may be missing."""
    return any(_STEP in line for line, _ in files.lines(run / "record" / FILES[STEPS]))
