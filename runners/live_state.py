"""What the terminal view knows: a state fed with plain dict events, one at a time; no clock and no I/O of its own.

Messages of the bus are events as they are (`msgspec.to_builtins`): `step`, `fact`, `beat`. The supervisor adds:

    {"type": "run", "name": str, "steps": int, "folder": str, "started_at": s, "max_staleness": int, "dead_after_s": s,
     "supervised": [actor]}                 whose deaths the supervisor tells
    {"type": "actor", "actor": str, "kind": str, "state": "starting|running|restarting|stopped|failed", "restarts": int}
    {"type": "queues", "requests": int, "evaluations": int, "episodes": int}
    {"type": "ledger", **Ledger.as_dict()}
    {"type": "error", "actor": str, "text": str, "at": s, "mended": bool}       mended: a trouble's end
    {"type": "note", "text": str}           what the run is doing besides training; "" when nothing

and who looks from outside

    {"type": "written", "now": bool}        whether somebody writes the run's record

Unknown types and fields are passed over. Times are seconds since the epoch.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from core.flow.rates import Rate

MEAN_STEPS = 10
"""Steps in the moving mean."""
ERRORS_KEPT = 6


@dataclass
class ActorState:
    kind: str = ""
    state: str = "starting"
    restarts: int = 0
    beat_at: float | None = None
    version: int = -1
    held: int = 0
    gauges: dict[str, float] = field(default_factory=dict)

    def health(self, now: float, dead_after_s: float) -> str:
        """`ok`, `late` (half of the time after which it counts as dead), `silent`, or the supervisor's word for it."""
        if self.state in ("restarting", "stopped", "failed", "left"):
            return self.state
        if self.beat_at is None:
            return self.state if self.state == "starting" else "no beat yet"
        age = now - self.beat_at
        return "silent" if age > dead_after_s else "late" if age > dead_after_s / 2 else "ok"


@dataclass
class LiveState:
    """Feed it; read it. `steps` and `rewards` follow the surviving chain: a rollback takes the voided ones out."""

    name: str = ""
    folder: str = ""
    steps_total: int = 0
    started_at: float | None = None
    max_staleness: int | None = None
    dead_after_s: float = 7.0
    supervised: frozenset[str] = frozenset()
    note: str = ""
    incarnation: int = 0
    finished: bool = False
    finished_at: float | None = None
    written: bool | None = None
    """Whether somebody writes its record; None where nobody has looked."""
    last_at: float | None = None
    """When the last thing happened that is known."""
    steps: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)
    """(step, at, metrics) of every step that stands."""
    base_step: int = 0
    """Where this view came in: the step that a run was resumed from."""
    queues: dict[str, int] = field(default_factory=dict)
    actors: dict[str, ActorState] = field(default_factory=dict)
    ledger: dict[str, Any] = field(default_factory=dict)
    errors: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))
    """(at, actor, text)"""
    mended: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))
    """Those of `errors` that tell the end of a trouble."""
    heldout: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """(version, figures) of the evaluations beside training, in order."""
    tokens: Rate = field(default_factory=Rate)
    verdicts: Rate = field(default_factory=Rate)

    def feed(self, event: Mapping[str, Any]) -> None:
        if event.get("type") in ("step", "fact", "beat") and event.get("at"):
            self.last_at = max(self.last_at or 0.0, event["at"])
        handler = getattr(self, f"_on_{event.get('type')}", None)
        if handler is not None:
            handler(event)

    @property
    def stopped(self) -> bool:
        """Nobody is at work, and there is work left."""
        return self.written is False and not self.finished

    def ran_s(self, now: float) -> float | None:
        """How long ago it began, or how long it took until it finished or stopped."""
        until = self.finished_at if self.finished else self.last_at if self.stopped else None
        return None if self.started_at is None else (until or now) - self.started_at

    @property
    def done(self) -> int:
        return self.steps[-1][0] if self.steps else self.base_step

    @property
    def latest(self) -> dict[str, float]:
        return self.steps[-1][2] if self.steps else {}

    def series(self, name: str) -> list[float]:
        return [metrics[name] for _, _, metrics in self.steps if metrics.get(name) is not None]

    def moving_mean(self, name: str) -> float | None:
        values = self.series(name)[-MEAN_STEPS:]
        return sum(values) / len(values) if values else None

    def waiting(self) -> dict[str, int]:
        """Queue depths. Episodes that wait for the learner are in its own beats, unless a `queues` event has them."""
        gauges = [
            actor.gauges["waiting_episodes"] for actor in self.actors.values() if "waiting_episodes" in actor.gauges
        ]
        return ({"episodes": int(sum(gauges))} if gauges else {}) | self.queues

    def left_s(self, now: float) -> float | None:
        """Time to the last step, by the median of the last steps' durations since the learner began; None before
        there are two."""
        if self.finished:
            return 0.0
        if self.stopped:
            return None
        ats = [at for number, at, _ in self.steps[-2 * MEAN_STEPS :] if number > self.base_step]
        if len(ats) < 2 or not self.steps_total:
            return None
        a_step = median(later - earlier for earlier, later in pairwise(ats))
        # A step may take longer than those before it: the ones after it are left all the same.
        return max(0.0, (self.steps_total - self.done) * a_step - min(a_step, now - ats[-1]))

    def rates(self, now: float) -> list[tuple[float, str]]:
        """(a second, of what), of what is counted at `now`."""
        known = ((self.verdicts, "kernels/s"), (self.tokens, "tokens/s"))
        found = ((one.per_s(now, self.dead_after_s), unit) for one, unit in known)
        return [(rate, unit) for rate, unit in found if rate is not None]

    def before(self, event: Mapping[str, Any]) -> bool:
        """Whether it happened before the run was taken up here: what a resumed run's record tells of its past."""
        return self.started_at is not None and 0 < event.get("at", 0.0) < self.started_at

    def _on_run(self, event: Mapping[str, Any]) -> None:
        self.name = event.get("name", self.name)
        self.folder = event.get("folder", self.folder)
        self.steps_total = event.get("steps", self.steps_total)
        self.started_at = event.get("started_at", self.started_at)
        self.max_staleness = event.get("max_staleness", self.max_staleness)
        self.dead_after_s = event.get("dead_after_s", self.dead_after_s)
        self.supervised = frozenset(event.get("supervised", self.supervised))

    def _on_step(self, event: Mapping[str, Any]) -> None:
        kind, number = event["kind"], event["step"]
        self._begin(event)
        if kind == "incarnation":
            self.incarnation = event["incarnation"]
            self.steps = [step for step in self.steps if step[0] <= number]
            self.base_step = number
            self.finished, self.finished_at = False, None
        elif kind == "step" and event["incarnation"] >= self.incarnation:
            self.steps.append((number, event.get("at", 0.0), dict(event.get("metrics", {}))))
            if self.before(event):
                self.base_step = number
        elif kind == "finished" and number >= self.steps_total:  # else: before run.steps was raised
            self.finished = True
            self.finished_at = event.get("at")

    def _begin(self, event: Mapping[str, Any]) -> None:
        """Who looks at a run from outside learns from its first record when it began."""
        if self.started_at is None and event.get("at"):
            self.started_at = event["at"]

    def _on_beat(self, event: Mapping[str, Any]) -> None:
        name, at, gauges = event["actor"], event["at"], event.get("gauges", {})
        actor = self.actors.setdefault(name, ActorState())
        actor.kind = event.get("kind", actor.kind)
        actor.beat_at = at
        actor.version = event.get("version", -1)
        actor.held = len(event.get("held", ()))
        actor.gauges = dict(gauges)
        if gauges.get("leaving"):
            actor.state = "left"
        elif actor.state in ("starting", "restarting"):
            actor.state = "running"
        process = (event["pid"], event.get("host")) if "pid" in event else None
        for gauge, rate in (("tokens_total", self.tokens), ("verdicts_total", self.verdicts)):
            if gauge in gauges:
                rate.see(name, gauges[gauge], at, self.dead_after_s, process)

    def _on_actor(self, event: Mapping[str, Any]) -> None:
        actor = self.actors.setdefault(event["actor"], ActorState())
        actor.kind = event.get("kind", actor.kind)
        actor.state = event.get("state", actor.state)
        actor.restarts = event.get("restarts", actor.restarts)
        if actor.state in ("starting", "restarting"):
            actor.beat_at = None

    def _on_queues(self, event: Mapping[str, Any]) -> None:
        self.queues = {name: value for name, value in event.items() if name != "type"}

    def _on_ledger(self, event: Mapping[str, Any]) -> None:
        self.ledger = dict(event)

    def _on_error(self, event: Mapping[str, Any]) -> None:
        told = (event.get("at", 0.0), event.get("actor", ""), event.get("text", ""))
        self.errors.append(told)
        if event.get("mended"):
            self.mended.append(told)

    def _on_written(self, event: Mapping[str, Any]) -> None:
        self.written = event["now"]

    def _on_note(self, event: Mapping[str, Any]) -> None:
        self.note = event.get("text", "")

    def _on_fact(self, event: Mapping[str, Any]) -> None:
        """Facts that a person wants to see as they happen."""
        self._begin(event)
        kind, data = event["kind"], event.get("data", {})
        if kind in ("joined", "left") and event.get("actor"):
            actor = self.actors.setdefault(event["actor"], ActorState(kind=str(data.get("kind", ""))))
            if kind == "left":  # in order: its silence is no trouble
                actor.state = "left"
            elif actor.state == "left":
                actor.state = "running"
        if kind == "evaluated":
            standing = [one for one in self.heldout if one[0] != data["version"]]
            self.heldout = [*standing, (data["version"], dict(data["figures"]))]
        texts = {
            "died": self._death(data),
            "poisoned": f"gave up {data.get('key')}: {data.get('why')}",
            "stalled": str(data.get("text") or data),
            "weights_refused": f"weights {data.get('version')}: wanted {data.get('wanted')}, got {data.get('got')}",
            "checkpoint_refused": f"checkpoint of step {data.get('step')} refused: {data.get('reason')}{_aside(data)}",
            "refused": f"refused message on {data.get('subject')}: {data.get('reason')}",
        }
        if texts.get(kind):
            self.errors.append((event.get("at", 0.0), event.get("actor", ""), texts[kind]))

    def _death(self, data: Mapping[str, Any]) -> str:
        """Who died, unless the supervisor has said so, and what became of the work in its hands."""
        actor, count = data.get("actor"), data.get("handed_on", 0)
        works = "1 delivery" if count == 1 else f"{count} deliveries"
        if actor in self.supervised:
            return f"{works} of {actor} handed on" if count else ""
        return f"{actor} died; {works} handed on"


def _aside(data: Mapping[str, Any]) -> str:
    """Where a damaged checkpoint is now, when it has been moved."""
    name = str(data.get("folder", "")).rpartition("/")[2]
    return f"; set aside as {name}" if name.endswith(".damaged") else ""
