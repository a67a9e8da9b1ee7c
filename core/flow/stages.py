"""Which stage of a run is the slowest: how busy each one is, where the open episodes are, and what follows from it.

    generation   share of the time in which the engines had sequences
    judging      share of the time in which judging processes were at work, of all there are
    training     share of the time in which the learner made steps
    publication  share of the time in which weights were on their way out

Every episode passes all of them, so in a steady run each has the same throughput, and a stage's capacity is that
throughput over the share of the time that it is busy: the busiest one has the lowest capacity, and it limits the run.
Two things make this less simple. An engine is as busy with two sequences as with two hundred, so where another stage is
busy too, the queues tell: open episodes are bounded by admission, and they pile up before the stage that limits. And
where none is busy all the time, they wait for each other: `sampler.max_staleness` says how far ahead they may be.

Pure: fed with beats and with steps, whoever reads them.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from core.flow.rates import Span, lived_s

STAGES = ("generation", "judging", "training", "publication")
LIMITS = ("balanced", *STAGES, "staleness")
"""What may limit a run; the metric `stage/limit` is a place in this list."""
FULL = 0.8
"""A stage that is busy for so much of the time may be the limit: there are always pauses between two pieces of work."""
NEAR = 0.1
"""Shares so close to each other are alike."""
PILED = 0.25
"""Of all open episodes: before the stage that limits there are more."""
WINDOW_S = 30.0
"""Shares are over the last step, and over so many before it that they last so long."""
KNOWN = 0.5
"""A share is told when so much of the time was counted by somebody."""


def limit_of(busy: Mapping[str, float], episodes: Mapping[str, float], exposed: float = 0.0) -> str:
    """Which of LIMITS it is.

    busy: share of the time, of each stage that is known. episodes: how many wait for a stage or are in it.
    exposed: share of the time in which training waited for weights or checkpoints of earlier steps to go out.
    """
    shares = {stage: busy[stage] for stage in ("generation", "judging") if stage in busy}
    if "training" in busy:  # the learner does one thing after the other, so what it waits for itself is its time too
        learner = "publication" if exposed > busy["training"] else "training"
        shares[learner] = busy["training"] + exposed
    full = {stage: share for stage, share in shares.items() if share >= FULL}
    if not full:
        return "staleness"
    if len(full) > 1 and "generation" in full and _passed_by(full, episodes):
        del full["generation"]
    busiest = max(full.values())
    near = [stage for stage, share in full.items() if share >= busiest - NEAR]
    return near[0] if len(near) == 1 else "balanced"


def _passed_by(full: Mapping[str, float], episodes: Mapping[str, float]) -> bool:
    """Whether few of the open episodes are in the busy engines: they pile up elsewhere."""
    if not {"generation", "judging", "training"} <= episodes.keys():
        return False
    here = episodes["generation"]
    return here < PILED * sum(episodes.values()) or ("judging" in full and here < episodes["judging"])


def limit(metrics: Mapping[str, float | None]) -> str:
    """Which of LIMITS a step's metrics name; empty where they hold none."""
    code = metrics.get("stage/limit")
    return "" if code is None or not 0 <= int(code) < len(LIMITS) else LIMITS[int(code)]


def words(metrics: Mapping[str, float | None]) -> str:
    """`judging, 97 % busy (generation 41 %, training 12 %)`, of a step's metrics; empty where they hold none."""
    if not (named := limit(metrics)):
        return ""
    busy = {stage: share for stage in STAGES if (share := metrics.get(f"stage/{stage}_busy")) is not None}
    others = ", ".join(f"{stage} {100 * share:.0f} %" for stage, share in busy.items() if stage != named)
    if named == "staleness":
        return f"staleness: nobody is busy all the time ({others})"
    if named == "balanced":
        return f"none, balanced: {others} busy"
    own = f", {100 * busy[named]:.0f} % busy" if named in busy else ""
    return f"{named}{own} ({others})"


def short(metrics: Mapping[str, float | None]) -> str:
    """`limit judging`, of a step's metrics; empty where they hold none."""
    return f"limit {named}" if (named := limit(metrics)) else ""


class Stretch(NamedTuple):
    """What one actor did between two of its beats, which were not far apart."""

    kind: str
    actor: str
    begin: float
    end: float
    gains: Mapping[str, float]
    """Of its counters; `room`: the seconds in which its places could have been busy."""


COUNTERS = {
    "generator": ("busy_s", "sequence_s", "awaited_s", "tokens_total", "episodes", "cpu_s"),
    "evaluator": ("busy_s", "lease_s", "judged"),
    "learner": ("cpu_s",),
}


def kind_of(actor: str, kind: str = "") -> str:
    """The kind of an actor; its name begins with it (`evaluator-1`)."""
    return kind or actor.rpartition("-")[0] or actor


class Stretches:
    """Beats in, stretches out: connects each actor's beat to the one before it."""

    def __init__(self, silent_s: float) -> None:
        """Beats that are further apart than `silent_s` are not connected."""
        self._silent_s = silent_s
        self._last: dict[str, tuple[float, Mapping[str, Any], Hashable]] = {}

    def see(
        self, actor: str, at: float, gauges: Mapping[str, Any], kind: str = "", process: Hashable = None
    ) -> Stretch | None:
        kind = kind_of(actor, kind)
        if kind not in COUNTERS or gauges.get("leaving"):
            return None
        before, self._last[actor] = self._last.get(actor), (at, gauges, process)
        if before is None or not 0 < at - before[0] <= self._silent_s:
            return None
        begin, old, was = before
        if process is not None and was is not None and process != was:
            return None
        gains: dict[str, float] = {}
        for name in COUNTERS[kind]:
            if name in gauges and name in old:
                gains[name] = gauges[name] - old[name]
                if gains[name] < 0:  # another process, which counts from 0 again
                    return None
        if kind == "evaluator":
            gains["room"] = gauges.get("workers", 0.0) * (at - begin)
            if "busy_s" not in gains:  # records of older runs: what a beat says is taken to hold until the next one
                gains["busy_s"] = old.get("busy", 0.0) * (at - begin)
        elif kind == "generator":
            gains["room"] = at - begin
        else:
            gains["waiting_s"] = old.get("waiting_episodes", 0.0) * (at - begin)
        return Stretch(kind, actor, begin, at, gains)


class Totals(NamedTuple):
    """Of one kind of actor within a time."""

    seconds: float
    """In which at least one of them counted."""
    actors: float
    """How many did, in the mean."""
    gains: Mapping[str, float]


def totals(stretches: Any, kind: str, begin: float, end: float) -> Totals:
    """What all actors of a kind did between two times; a stretch that lies partly in them counts by its part."""
    gains: dict[str, float] = defaultdict(float)
    spans, counted = [], 0.0
    for one in stretches:
        if one.kind == kind and (part := Span(one.begin, one.end, 1.0).within(begin, end)) is not None:
            spans.append(part)
            counted += part.end - part.begin
            for name, gain in one.gains.items():
                gains[name] += gain * part.gain
    seconds = lived_s(spans)
    return Totals(seconds, counted / seconds if seconds else 0.0, gains)


class Step(NamedTuple):
    at: float
    training_s: float
    exposed_s: float
    publish_s: float


class StageUse:
    """The figures of each step: `see` every beat, `step` at the end of each step."""

    def __init__(self, silent_s: float) -> None:
        self._stretches = Stretches(silent_s)
        self._kept: deque[Stretch] = deque()
        self._steps: deque[Step] = deque()
        self.latest: dict[str, float] = {}
        """Figures of the last step."""

    def see(self, actor: str, at: float, gauges: Mapping[str, Any], kind: str = "", process: Hashable = None) -> None:
        if (one := self._stretches.see(actor, at, gauges, kind, process)) is not None:
            self._kept.append(one)

    def step(self, at: float, metrics: Mapping[str, float | None]) -> dict[str, float]:
        """The figures (`stage/...`) of a step that ends at `at` with these metrics, over the time since an earlier
        one ended; none of the first one, before which everybody was starting. What nobody counted is left out."""
        self._steps.append(step_of(at, metrics))
        while len(self._steps) > 2 and self._steps[1].at <= at - WINDOW_S:
            self._steps.popleft()
        begin = self._steps[0].at
        while self._kept and self._kept[0].end <= begin:
            self._kept.popleft()
        made = list(self._steps)[1:]
        self.latest = figures(self._kept, begin, at, made) if made and at > begin else {}
        return self.latest


def step_of(at: float, metrics: Mapping[str, float | None]) -> Step:
    def seconds(*names: str) -> float:
        return sum(metrics.get(f"time/{name}_s") or 0.0 for name in names)

    return Step(
        at,
        seconds("learner", "prepare_exposed"),
        seconds("publish_exposed", "checkpoint_exposed"),
        seconds("publish"),
    )


def figures(stretches: Any, begin: float, end: float, steps: Any) -> dict[str, float]:
    """The metrics `stage/...` of the time between two moments (seconds since the epoch), in which these steps ended."""
    wall = end - begin
    busy: dict[str, float] = {}
    episodes: dict[str, float] = {}
    generators, evaluators, learners = (
        totals(stretches, kind, begin, end) for kind in ("generator", "evaluator", "learner")
    )
    for stage, found in (("generation", generators), ("judging", evaluators)):
        if found.seconds >= KNOWN * wall and found.gains["room"] > 0:
            busy[stage] = min(1.0, found.gains["busy_s"] / found.gains["room"])
    if generators.seconds >= KNOWN * wall:
        for stage, name in (("generation", "sequence_s"), ("judging", "awaited_s")):
            if name in generators.gains:
                episodes[stage] = generators.gains[name] / generators.seconds
    if learners.seconds >= KNOWN * wall:
        episodes["training"] = learners.gains["waiting_s"] / learners.seconds
    busy["training"] = min(1.0, sum(step.training_s for step in steps) / wall)
    exposed = min(1.0, sum(step.exposed_s for step in steps) / wall)
    busy["publication"] = min(1.0, max(exposed, sum(step.publish_s for step in steps) / wall))
    told = {f"stage/{stage}_busy": share for stage, share in busy.items()}
    told |= {f"stage/{stage}_episodes": count for stage, count in episodes.items()}
    if "generation" in busy and "judging" in busy:
        told["stage/limit"] = float(LIMITS.index(limit_of(busy, episodes, exposed)))
    return told
