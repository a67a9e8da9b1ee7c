"""Verdicts of a run beside those that the same kernels get now, and what that does to its rewards.

    written = read(folder, Choice(tasks=("starter/*",), last=200))
    for kernel in written.kernels.values(): ...           # each source of a task once
    difference(kernel.verdict, verdict)                   # "same", "verdict", "reason", "speed", "unjudged", "first"

Our own trouble (`infra`) is never a change, on whichever side it stands. A speed has changed when its interval and the
one from before lie apart; measured and modelled speeds are not compared.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from core.episodes.episode import Episode, Turn
from core.episodes.metrics import batch_metrics
from core.evaluation.verdict import Verdict
from core.identity import digest
from core.record import reading
from core.record.best import Kernel, last_version

Difference = Literal["same", "verdict", "reason", "speed", "unjudged", "first"]
CHANGES: tuple[Difference, ...] = ("verdict", "reason", "speed")
FIGURES = ("reward/mean", "reward/std", "correct/any", "correct/by_turn_1", "speedup/geomean")
SPEED_APART = 0.02
"""Intervals must be apart by this share too: a clock of another day is off by so much more than its interval says."""
Score = Callable[[Verdict], float | None]
Which = tuple[str, str]
"""A kernel: (task id, digest of its source)."""


@dataclass(frozen=True)
class Choice:
    """Which episodes are read, and which of their kernels are judged."""

    tasks: tuple[str, ...] = ()
    """Patterns; none: all tasks."""
    last: int = 0
    """Only so many episodes, those that ended last; 0: all."""
    kinds: tuple[str, ...] = ()
    """Only kernels with such a verdict; none: all."""
    sample: int = 0
    """Only so many kernels, drawn by `seed`; 0: all."""
    seed: int = 0


@dataclass
class Written:
    """What was chosen of a record."""

    episodes: list[Episode] = field(default_factory=list)
    """Without ids and log-probs; in place of its source a candidate has the source's digest."""
    kernels: dict[Which, Kernel] = field(default_factory=dict)
    """Those to judge, in the order of their tasks, so that a judge has a task's reference at hand."""


def read(run: str | Path, choice: Choice) -> Written:
    """Raises RecordError."""
    kept: deque[tuple[Episode, list[int]]] = deque(maxlen=choice.last or None)
    for row in reading.episodes(run):
        if not choice.tasks or any(fnmatchcase(row.episode.task_id, pattern) for pattern in choice.tasks):
            kept.append((_light(row.episode), [last_version(turn.versions) for turn in row.episode.turns]))
    written, found = Written(), dict[Which, Kernel]()
    while kept:
        written.episodes.append(_taken(*kept.popleft(), found))
    chosen = [which for which, kernel in found.items() if not choice.kinds or kernel.verdict.kind in choice.kinds]
    if choice.sample:
        chosen = random.Random(choice.seed).sample(chosen, min(choice.sample, len(chosen)))
    written.kernels = {which: found[which] for which in sorted(chosen)}
    return written


def _light(episode: Episode) -> Episode:
    """Without what only the learner reads."""
    turns = [replace(turn, prompt_ids=b"", completion_ids=b"", logprobs=b"", versions=b"") for turn in episode.turns]
    return replace(episode, turns=tuple(turns))


def _taken(episode: Episode, versions: list[int], found: dict[Which, Kernel]) -> Episode:
    """With its kernels in `found`, each once, with its first verdict that is no trouble of ours; and the digest of each
    in the kernel's place."""
    turns = []
    for turn, version in zip(episode.turns, versions, strict=True):
        if turn.candidate is not None:
            source, turn = turn.candidate, replace(turn, candidate=digest(turn.candidate))
            if (which := which_of(episode, turn)) is not None:
                assert turn.verdict is not None
                known = found.get(which)
                times = 1 if known is None else known.times + 1
                if known is None or (known.verdict.kind == "infra" and turn.verdict.kind != "infra"):
                    known = Kernel(
                        task_id=episode.task_id,
                        level=episode.level,
                        source=source,
                        verdict=turn.verdict,
                        episode=episode.episode_id,
                        turn=turn.index,
                        version=version,
                    )
                found[which] = replace(known, times=times)
        turns.append(turn)
    return replace(episode, turns=tuple(turns))


def which_of(episode: Episode, turn: Turn) -> Which | None:
    """The kernel of a turn of `Written.episodes`; None where it has none that was judged."""
    return None if turn.candidate is None or turn.verdict is None else (episode.task_id, turn.candidate)


def difference(was: Verdict, now: Verdict) -> Difference:
    """`verdict`: another kind. `reason`: it fails still, for something else. `speed`: it passes still. `unjudged`: our
    own trouble now, `first`: then."""
    if now.kind == "infra":
        return "unjudged"
    if was.kind == "infra":
        return "first"
    if (was.kind, was.correct) != (now.kind, now.correct):
        return "verdict"
    if was.kind == "pass":
        return "speed" if _apart(was, now) else "same"
    return "same" if (was.category, was.compiled) == (now.category, now.compiled) else "reason"


def _apart(was: Verdict, now: Verdict) -> bool:
    if was.speed_kind != now.speed_kind or was.speedup is None or now.speedup is None:
        return False
    (low, high), (other_low, other_high) = _interval(was), _interval(now)
    return other_low > high * (1 + SPEED_APART) or low > other_high * (1 + SPEED_APART)


def _interval(verdict: Verdict) -> tuple[float, float]:
    """Its lower end is known; the upper one is as far away."""
    assert verdict.speedup is not None
    low = verdict.speedup if verdict.speedup_low is None else verdict.speedup_low
    return low, max(verdict.speedup, 2 * verdict.speedup - low)


def rescored(episode: Episode, score: Score, verdicts: Mapping[Which, Verdict] | None = None) -> Episode:
    """The episode with the scores that its verdicts get from `score`. verdicts: new ones, of an episode of `Written`; a
    kernel that is not among them, or meets our own trouble now or met it then, keeps what it had."""
    turns = []
    for turn in episode.turns:
        verdict = turn.verdict
        if verdicts and verdict is not None and (which := which_of(episode, turn)) is not None:
            new = verdicts.get(which, verdict)
            verdict = verdict if "infra" in (new.kind, verdict.kind) else new
        turns.append(replace(turn, verdict=verdict, score=None if verdict is None else score(verdict)))
    return replace(episode, turns=tuple(turns))


def figures(episodes: Iterable[Episode]) -> dict[str, float]:
    """Those of `FIGURES` that something speaks for."""
    all_of_them = batch_metrics(list(episodes))
    return {name: all_of_them[name] for name in FIGURES if name in all_of_them}
