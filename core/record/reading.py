"""Reading a run's record: typed rows, whatever the writer's version, each once.

Rows are read by field name from what is on disk; unknown fields are ignored. Doubles (a message that was recorded twice
by two recorders, or an episode that was played again after a trim) are dropped by key; the first one counts, as it does
for the learner. A torn last record is left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from core.episodes.episode import Episode
from core.flow.ledger import Admission, ChainRecord, EndedEpisode, Ledger, settle, surviving
from core.record import files
from core.record.files import RecordError
from core.record.record import EPISODES, FACTS, FILES, METRICS, STEPS, episode_key, line_key
from core.run_folder import RunFolder, read_config

Row = TypeVar("Row")
RUNS = Path("runs")
"""Where `run.folder` puts runs unless a config says otherwise."""


class FactRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""

    kind: str
    actor: str = ""
    at: float = 0.0
    """Seconds since the epoch."""
    data: dict[str, Any] = {}
    trace: str = ""


class StepRow(ChainRecord, msgspec.Struct, frozen=True, kw_only=True):
    """A record of the chain with its metrics. A metric is None where it was not a finite number."""

    version: int = 0
    metrics: dict[str, float | None] = {}
    at: float = 0.0


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """An ended episode, whole."""

    episode: Episode
    admission: int = -1
    size: int = 0
    generator: str = ""


def run_folder(path: str | Path) -> Path:
    """The folder, if it holds a run's record; a name alone is also looked for in ./runs. Raises RecordError with what
    to do."""
    folder = Path(path)
    named = RUNS / folder
    is_name = len(folder.parts) == 1 and folder.name not in ("", "..")
    if is_name and not (folder / "record").is_dir() and (named / "record").is_dir():
        return named
    if not folder.is_dir():
        if not is_name:
            raise RecordError(f"{folder}: there is no such run folder")
        if not named.is_dir():
            raise RecordError(f"{folder}: there is no run folder {folder} and no {named} (looked in {Path.cwd()})")
        folder = named
    if not (folder / "record").is_dir():
        inside = ", ".join(sorted(p.parent.parent.name for p in folder.glob("*/record/facts.jsonl"))[:5])
        hint = f"; runs in it: {inside}" if inside else "; give the folder that `kernelmill up` made, e.g. runs/demo"
        raise RecordError(f"{folder} holds no record/ of a run{hint}")
    return folder


def facts(run: str | Path) -> Iterator[FactRow]:
    return _rows(_path(run, FACTS), FactRow)


def steps(run: str | Path) -> Iterator[StepRow]:
    """All records of the chain in order, voided ones included (`core.flow.ledger.surviving` tells them apart)."""
    return _rows(_path(run, STEPS), StepRow)


def surviving_steps(chain: Iterable[StepRow]) -> list[StepRow]:
    """The steps that stand, in order: not those that a rollback took back, nor records of other kinds."""
    kept, _ = surviving(chain)
    return [row for row in kept if isinstance(row, StepRow) and row.kind == "step"]


def metrics(run: str | Path) -> Iterator[dict[str, Any]]:
    return _rows(_path(run, METRICS), dict[str, Any])


def episodes(run: str | Path) -> Iterator[EndedRow]:
    """Archived episodes in the order in which they ended; one in memory at a time."""
    path = _path(run, EPISODES)
    for value in _episode_maps(path):
        try:
            yield msgspec.convert(value, EndedRow, builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            raise RecordError(f"{path}: a record is no ended episode: {error}; {files.WHAT_TO_DO}") from error


def admissions(run: str | Path) -> list[Admission]:
    """The groups that were submitted."""
    return [msgspec.convert(fact.data, Admission) for fact in facts(run) if fact.kind == "admitted"]


def ends(run: str | Path) -> list[EndedEpisode] | None:
    """How every archived episode ended; None when the run keeps no archive."""
    path = _path(run, EPISODES)
    if not path.exists():
        return None
    return [
        EndedEpisode(group_id=episode["group_id"], index=episode["index"], end=episode["end"])
        for episode in (value["episode"] for value in _episode_maps(path))
    ]


def ledger(run: str | Path, wanted: int | None = None) -> Ledger:
    """The run's account. The chain is read first, so that what it rests on is there when a live run is read.

    wanted: steps that the run is to make, where another config than the run's own says so.
    """
    chain = list(steps(run))
    return settle(admissions(run), chain, ends(run), steps_wanted(run) if wanted is None else wanted)


def steps_wanted(run: str | Path) -> int:
    """How many steps the run's config asks for; 0 where there is none that can be read: the record stands without."""
    try:
        wanted = read_config(RunFolder(run).config).get("run", {}).get("steps")
    except (OSError, RecordError):
        return 0
    return wanted if isinstance(wanted, int) else 0


def torn(run: str | Path, whole: Mapping[str, int] | None = None) -> dict[str, int]:
    """{file name: bytes after its last whole record}, of the files that end in a piece of one: a writer was killed in
    the middle (or is writing now). What was cut off is in its stream still and comes again with the next recorder.

    whole: stream -> bytes of its file that are known to be whole records, and need not be read.
    """
    found: dict[str, int] = {}
    for stream in FILES:
        path, end = _path(run, stream), (whole or {}).get(stream, 0)
        if path.exists():
            for _, end in files.maps(path, end) if stream == EPISODES else files.lines(path, end):  # noqa: B007, B020
                pass
            if (rest := path.stat().st_size - end) > 0:
                found[path.name] = rest
    return found


def _path(run: str | Path, stream: str) -> Path:
    return Path(run) / "record" / FILES[stream]


def _rows(path: Path, kind: type[Row]) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(kind)
    seen: set[str] = set()
    for number, (line, _) in enumerate(files.lines(path), 1):
        key = line_key(line)
        if key in seen:
            continue
        seen.add(key)
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise RecordError(
                f"{path}: line {number} is no {getattr(kind, '__name__', 'row')}: {error}; {files.WHAT_TO_DO}"
            ) from error


def _episode_maps(path: Path) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for value, _ in files.maps(path):
        try:
            key = episode_key(value["episode"]["group_id"], value["episode"]["index"])
        except (KeyError, TypeError) as error:
            raise RecordError(f"{path}: a record is no ended episode: no {error}; {files.WHAT_TO_DO}") from None
        if key not in seen:
            seen.add(key)
            yield value
