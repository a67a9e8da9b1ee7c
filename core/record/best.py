"""The kernels of a run that are worth keeping: of each task those that passed, each once, the fastest first.

    for task_id, kernels in passed(folder).items():
        kernels[0]          # the fastest, as it was measured in the run

Taken are all archived episodes, those of steps that were rolled back too (a kernel is right whoever trained on it), and
the held-out evaluations before training and after.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from core import columns
from core.episodes.heldout_figures import HeldOut
from core.evaluation.verdict import Verdict
from core.record import heldout, reading


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One source that was judged, here mostly one that passed, and where the run wrote it first."""

    task_id: str
    level: int
    source: str
    verdict: Verdict
    """Of the first time; the same source has the same verdict on the bus."""
    episode: str
    """`group/index`, or the held-out evaluation's file."""
    turn: int
    version: int
    """The policy's, of the last token."""
    times: int = 1
    """How often the run wrote it."""


def passed(run: str | Path) -> dict[str, list[Kernel]]:
    """task_id -> its kernels, the fastest first; tasks in the order of their ids. Raises RecordError."""
    return ranked(_written(Path(run)))


def ranked(written: Iterable[Kernel]) -> dict[str, list[Kernel]]:
    """As `passed`, of kernels as they were written."""
    found: dict[tuple[str, str], Kernel] = {}
    for kernel in written:
        key = (kernel.task_id, kernel.source)
        known = found.get(key)
        found[key] = kernel if known is None else msgspec.structs.replace(known, times=known.times + 1)
    by_task: dict[str, list[Kernel]] = {}
    for (task_id, _), kernel in sorted(found.items(), key=lambda item: item[0][0]):
        by_task.setdefault(task_id, []).append(kernel)
    return {task_id: sorted(kernels, key=rank, reverse=True) for task_id, kernels in by_task.items()}


def rank(kernel: Kernel) -> tuple[float, int]:
    """Faster is better, and what was written more often where no speed tells them apart."""
    return speed_of(kernel.verdict), kernel.times


def speed_of(verdict: Verdict) -> float:
    """What kernels are compared by: the lower end of the speedup's interval; 0.0 where there is no speed."""
    low = verdict.speedup_low if verdict.speedup_low is not None else verdict.speedup
    return 0.0 if low is None else low


class _Turn(NamedTuple):
    number: int
    candidate: str | None
    verdict: Verdict | None
    version: int


def _written(run: Path) -> Iterator[Kernel]:
    for row in reading.episodes(run):
        episode = row.episode
        turns = [_Turn(turn.index, turn.candidate, turn.verdict, last_version(turn.versions)) for turn in episode.turns]
        yield from _right(episode.task_id, episode.level, episode.episode_id, turns)
    for name in (heldout.BEFORE, heldout.AFTER):
        if (evaluation := heldout.load_if_whole(run / name)) is not None:
            yield from of_evaluation(evaluation, name)


def of_evaluation(evaluation: HeldOut, name: str) -> Iterator[Kernel]:
    """Those that passed there; `name` stands for their episodes."""
    for played in evaluation.episodes:
        turns = [_Turn(n, turn.candidate, turn.verdict, evaluation.version) for n, turn in enumerate(played.turns)]
        yield from _right(played.task_id, played.level, name, turns)


def _right(task_id: str, level: int, episode: str, turns: Iterable[_Turn]) -> Iterator[Kernel]:
    for turn in turns:
        if turn.candidate is not None and turn.verdict is not None and turn.verdict.kind == "pass":
            yield Kernel(
                task_id=task_id,
                level=level,
                source=turn.candidate,
                verdict=turn.verdict,
                episode=episode,
                turn=turn.number,
                version=turn.version,
            )


def last_version(versions: bytes) -> int:
    """The policy's that sampled the last token of a turn's column; 0 where there is none."""
    values = columns.unpack("versions", versions)
    return int(values[-1]) if len(values) else 0
