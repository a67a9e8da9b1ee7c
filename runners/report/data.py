"""What the report is about, gathered from the run folder: plain values, nothing of HTML.

Only steps of the surviving chain count. Figures come from the step records; where a learner left them out they are
worked out from the archived episodes, by the same definitions.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from configs.differences import told
from configs.schema import Bus
from core.episodes.episode import Episode
from core.episodes.heldout_figures import HeldOut, HeldOutEpisode, HeldOutTurn, slim, tracked
from core.episodes.metrics import batch_metrics
from core.flow.ledger import Ledger
from core.flow.rates import Reading, Span, closed_up
from core.record import cuts, heldout, reading
from core.record.record import METRICS_EVERY_S, being_written
from core.run_folder import read_config
from runners.standing import standing

PAIRS = 5
"""Kernels shown before and after."""
SLICES = 60
"""Of a run's time, each with its rates."""


@dataclass(frozen=True)
class Pair:
    """The same task before training and after."""

    task_id: str
    source: str
    before: HeldOutEpisode
    after: HeldOutEpisode

    @property
    def gain(self) -> float:
        return score_of(self.after) - score_of(self.before)


@dataclass
class ReportData:
    folder: Path
    name: str
    config: dict[str, Any]
    ledger: Ledger
    standing: str
    """Whether it runs, has stopped or finished."""
    steps: list[int] = field(default_factory=list)
    figures: list[dict[str, float | None]] = field(default_factory=list)
    """Of each step."""
    started_at: float | None = None
    ended_at: float | None = None
    """Of the last record, seconds since the epoch."""
    paused_s: float = 0.0
    """Of the time between, in which nobody wrote: the run was stopped, and taken up again."""
    rollbacks: list[tuple[int, str]] = field(default_factory=list)
    """(step, what happened)"""
    settings: list[tuple[int, str]] = field(default_factory=list)
    """(step, what was changed when the run went on from there)"""
    facts: dict[str, int] = field(default_factory=dict)
    throughput: dict[str, tuple[list[float], list[float | None]]] = field(default_factory=dict)
    """Gauge -> (minutes since the start, of those in which the run ran; per second)."""
    before: HeldOut | None = None
    after: HeldOut | None = None
    beside: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """(version, figures under `heldout/`) of the evaluations while the run trained, by version."""
    pairs: list[Pair] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A line for each file of the run that is not whole."""
    pairs_from: str = ""
    """Where the pairs come from, and how they were chosen."""

    def series(self, name: str) -> list[float | None]:
        return [figures.get(name) for figures in self.figures]


def gather(folder: Path) -> ReportData:
    """Read everything once. Raises `core.record.files.RecordError` for files that can't be read."""
    chain = list(reading.steps(folder))
    steps = reading.surviving_steps(chain)
    path = folder / "config.json"
    config = read_config(path) if path.exists() else {}  # absent in runs that never got so far
    ledger = reading.ledger(folder)
    data = ReportData(
        folder=folder,
        name=str(config.get("run", {}).get("name") or folder.resolve().name),
        config=config,
        ledger=ledger,
        standing=standing(ledger, being_written(folder)),
        steps=[row.step for row in steps],
        figures=[row.metrics for row in steps],
        before=heldout.load_if_whole(folder / heldout.BEFORE),
        after=heldout.load_if_whole(folder / heldout.AFTER),
        left_out=[*cuts.left_out(folder), *heldout.broken(folder)],
    )
    ats = [row.at for row in chain if row.at]
    kinds: Counter[str] = Counter()
    beside: dict[int, dict[str, float]] = {}
    for fact in reading.facts(folder):
        kinds[fact.kind] += 1
        if fact.kind == "other_settings":
            data.settings.append((int(fact.data["step"]), told(fact.data["changes"])))
        if fact.kind == "evaluated":
            beside[fact.data["version"]] = tracked(fact.data)
        if fact.at:
            ats.append(fact.at)
    data.facts = dict(sorted(kinds.items()))
    data.beside = sorted(beside.items())
    data.started_at, data.ended_at = (min(ats), max(ats)) if ats else (None, None)
    data.rollbacks = _rollbacks(chain)
    dead_after_s = config.get("bus", {}).get("dead_after_s", Bus().dead_after_s)
    silent_s, gauges = dead_after_s + 2 * METRICS_EVERY_S, list(reading.metrics(folder))
    written = [float(at) for row in gauges if isinstance(at := row.get("at"), int | float)]
    data.paused_s = _paused_s([*ats, *written], silent_s) if written else 0.0
    data.throughput = _throughput(gauges, data.started_at, silent_s)
    firsts_lasts = _archive(folder, data, steps)
    _choose_pairs(data, firsts_lasts)
    return data


def _rollbacks(chain: list[reading.StepRow]) -> list[tuple[int, str]]:
    found, last = [], 0
    for n, row in enumerate(chain):
        if row.kind == "incarnation" and n:
            lost = last - row.step
            again = f"; {lost} {'step' if lost == 1 else 'steps'} made again" if lost > 0 else ""
            found.append((row.step, f"the learner was restarted from step {row.step}{again}"))
        last = row.step
    return found


def _paused_s(ats: Iterable[float], silent_s: float) -> float:
    """Between times at which something was written; whoever runs writes its gauges more often than every `silent_s`."""
    return sum(later - earlier for earlier, later in pairwise(sorted(ats)) if later - earlier > silent_s)


def _throughput(
    rows: Iterable[Mapping[str, Any]], started_at: float | None, silent_s: float
) -> dict[str, tuple[list[float], list[float | None]]]:
    """Counters of all actors as rates, in slices of the time in which somebody counted. What an actor did between two
    readings is spread evenly over the time between them."""
    spans: dict[str, list[Span]] = defaultdict(list)
    before: dict[tuple[str, str], Reading] = {}
    for row in rows:
        for gauge in ("tokens_total", "verdicts_total"):
            total, at, key = row.get(gauge), row.get("at"), (str(row.get("actor")), gauge)
            if isinstance(total, int | float) and isinstance(at, int | float):
                now = Reading(total, at)
                if key in before and (span := before[key].span_to(now, silent_s)) is not None:
                    spans[gauge].append(span)
                before[key] = now
    out: dict[str, tuple[list[float], list[float | None]]] = {}
    for gauge, found in spans.items():
        lived = closed_up(found)
        start, end = lived[0].begin, max(span.end for span in lived)
        width = (end - start) / SLICES
        gains = [0.0] * SLICES
        for span in lived:
            first, last = int((span.begin - start) / width), int((span.end - start) / width)
            for n in range(first, min(SLICES - 1, last) + 1):
                if (part := span.within(start + n * width, start + (n + 1) * width)) is not None:
                    gains[n] += part.gain
        offset = start - (started_at if started_at is not None else start)
        minutes = [round((offset + (n + 0.5) * width) / 60, 3) for n in range(SLICES)]
        out[gauge] = (minutes, [gain / width for gain in gains])
    return out


def _archive(
    folder: Path, data: ReportData, steps: list[reading.StepRow]
) -> dict[str, tuple[HeldOutEpisode, HeldOutEpisode]]:
    """One pass over the archive: figures of the steps that lack them, and each task's first and last episode. Episodes
    of a step are held until all of them have been met."""
    lacking = {n: row for n, row in enumerate(steps) if row.metrics.get("reward/mean") is None}
    wanted_pairs = data.before is None or data.after is None
    found: dict[str, tuple[HeldOutEpisode, HeldOutEpisode]] = {}
    if not lacking and not wanted_pairs:
        return found
    step_of = {group.group_id: n for n, row in lacking.items() for group in row.groups}
    missing = {n: sum(len(g.trained) + len(g.rejected) for g in row.groups) for n, row in lacking.items()}
    held: dict[int, list[Episode]] = defaultdict(list)
    for row in reading.episodes(folder):
        episode = row.episode
        n = step_of.get(episode.group_id)
        if n is not None:
            held[n].append(episode)
            if len(held[n]) == missing[n]:
                made = batch_metrics(held.pop(n), version=steps[n].version - 1)
                data.figures[n] = {**made, **data.figures[n]}
        if wanted_pairs and episode.trainable:
            (kept,) = slim([episode])
            found[episode.task_id] = (found.get(episode.task_id, (kept, kept))[0], kept)
    return found


def _choose_pairs(data: ReportData, firsts_lasts: dict[str, tuple[HeldOutEpisode, HeldOutEpisode]]) -> None:
    if data.before is not None and data.after is not None:
        sources = {**data.before.sources, **data.after.sources}
        firsts = _by_task(data.before)
        pairs = [
            Pair(task, sources.get(task, ""), firsts[task], after)
            for task, after in _by_task(data.after).items()
            if task in firsts
        ]
        better = sum(pair.gain > 1e-9 for pair in pairs)
        worse = sum(pair.gain < -1e-9 for pair in pairs)
        data.pairs_from = (
            f"Held-out tasks, first sample of each, with the largest gain in score. Of {len(pairs)} tasks {better} "
            f"gained, {worse} lost and {len(pairs) - better - worse} stayed the same; these are the best, not typical."
        )
    else:
        pairs = [Pair(task, "", first, last) for task, (first, last) in firsts_lasts.items() if first is not last]
        data.pairs_from = (
            "No held-out evaluation was made, so these are training tasks that came more than once: the first and the "
            "last episode, with the largest gain in score; the best, not typical."
        )
    pairs.sort(key=lambda pair: (-pair.gain, pair.task_id))
    data.pairs = [pair for pair in pairs if pair.gain > 0][:PAIRS]


def _by_task(evaluation: HeldOut) -> dict[str, HeldOutEpisode]:
    found: dict[str, HeldOutEpisode] = {}
    for episode in evaluation.episodes:
        if episode.turns:
            found.setdefault(episode.task_id, episode)
    return found


def score_of(episode: HeldOutEpisode) -> float:
    return episode.best.score or 0.0 if episode.best is not None else 0.0


def shown_turn(episode: HeldOutEpisode) -> HeldOutTurn:
    """The turn that stands for the episode: the best one, or the first where nothing was scored."""
    return episode.best or episode.turns[0]


def standard_error(share: float, n: int) -> float:
    """Of a share among n independent samples: √(p(1-p)/n)."""
    return math.sqrt(max(0.0, share * (1 - share)) / n) if n else 0.0


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


ENDS = 3
"""Steps at either end whose mean is called first and last."""


def first_and_last(values: list[float | None]) -> tuple[float | None, float | None, int]:
    """Means of the first and of the last n values, and n: ENDS, or less so that no value is in both (one alone is)."""
    n = min(ENDS, max(1, len(values) // 2))
    return mean_of(values[:n]), mean_of(values[-n:]), n


def moving_mean(values: Sequence[float | None], width: int) -> list[float | None]:
    """Of the last `width` values at each position."""
    return [mean_of(values[max(0, n + 1 - width) : n + 1]) for n in range(len(values))]
