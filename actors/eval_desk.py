"""The desk between HTTP and the evaluators: how many may wait, who waits for the same verdict, what is asked again.

- At most `places` requests are in hand; one more is refused, so memory is bounded and clients learn of overload.
- Requests for the same candidate key share one judging. It belongs to nobody: a client that goes away ends its own
  wait only.
- An infra verdict is terminal for its key. A later request for the same candidate is judged under the next attempt's
  key; after `ATTEMPTS` of them in a row it is given up for `GIVEN_UP_S`, so that a candidate that brings evaluators
  down can't do so without end.
"""

import asyncio
from collections import Counter, OrderedDict
from typing import Any, Protocol

import msgspec

from actors.eval_api import BAD_REFERENCE, Answer, EvalRequest, Terms, answer
from core.clock import Clock
from core.evaluation.verdict import Verdict
from core.tasks.task import Task
from core.to_the_end import to_the_end

ATTEMPTS = 3
GIVEN_UP_S = 600.0
_REMEMBERED = 10_000


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluator, as clients see it. `id` counts up in the order in which they were first seen and stays."""

    id: int
    name: str
    workers: int = 0
    busy: int = 0
    alive: bool = False
    restarts: int = 0
    judged: int = 0
    gpu: dict[str, Any] | None = None
    """State, faults and times of its GPU (`core.evaluation.gpu.condition.read_gauges`); None on the CPU tier."""

    @property
    def sound(self) -> bool:
        """Its GPU, if it has one, is not in quarantine."""
        return self.gpu is None or self.gpu["state"] == "healthy"

    @property
    def available(self) -> bool:
        """It would begin with a candidate at once."""
        return self.alive and self.sound and self.busy < self.workers


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A terminal verdict and where it is from."""

    verdict: Verdict
    evaluator: str
    """Who judged."""
    stood: bool = False
    """It was there before this asking. One that came late, after an earlier asking had given up, is so too."""


class Judging(Protocol):
    """Those who judge: the evaluators of a run, or a pool in this process."""

    terms: Terms

    def key(self, task: Task, candidate: str, attempt: int) -> str:
        """The candidate key of one attempt; attempt 0 has the key that everybody else uses."""
        ...

    async def verdict(self, task: Task, candidate: str, key: str, preferred: int | None) -> Judgement:
        """`preferred` is a device's number; one that is not there is no wish. Raises TimeoutError when no verdict comes
        in time."""
        ...

    async def probe(self, number: int) -> dict[str, Any]:
        """Probe that device's GPUs now: what came out, empty where it has none. Raises TimeoutError."""
        ...

    def devices(self) -> list[Device]: ...

    def unready(self) -> str:
        """Why nobody can judge now; empty when somebody can."""
        ...


class Full(Exception):
    """No place for so many requests; `retry_after_s` is when there may be one."""

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class _Infra(msgspec.Struct):
    """What became of a candidate that could not be judged."""

    attempts: int
    at: float
    verdict: Verdict
    evaluator: str


class Desk:
    def __init__(self, judging: Judging, *, places: int, clock: Clock) -> None:
        self.judging = judging
        self.places = places
        self.taken = 0
        """Requests in hand."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """(kind, category) -> verdicts that were judged for this desk; requests that shared one count once."""
        self.stood: Counter[tuple[str, str]] = Counter()
        """The same for those that stood before they were first asked for, or were counted already; requests that asked
        at the same time count once."""
        self._clock = clock
        self._judgings: dict[str, asyncio.Task[Judgement]] = {}
        self._awaited: OrderedDict[str, None] = OrderedDict()
        """Keys whose verdict was asked for and had not come when the wait ended: it is judged for this desk."""
        self._infra: OrderedDict[str, _Infra] = OrderedDict()
        self._wall_s = 1.0
        self.empty = asyncio.Event()
        """Set while no request is in hand."""
        self.empty.set()

    @property
    def in_hand(self) -> int:
        """Candidates that are being judged or wait for an evaluator; fewer than requests where some share one."""
        return len(self._judgings)

    def take(self, count: int = 1) -> None:
        """Take places, to be given back with `leave`. Raises Full; then none was taken."""
        if self.taken + count > self.places:
            slots = max(1, sum(device.workers for device in self.judging.devices() if device.alive))
            wait_s = int(min(60.0, max(1.0, self.taken * self._wall_s / slots)))
            raise Full(f"{self.taken} of {self.places} places are taken and {count} more were asked for", wait_s)
        self.taken += count
        self.empty.clear()

    def leave(self, count: int = 1) -> None:
        self.taken -= count
        if not self.taken:
            self.empty.set()

    async def ask(self, request: EvalRequest) -> Answer:
        """The answer to one request that has a place. Raises TimeoutError, and what the bus raises."""
        terms, task, candidate = self.judging.terms, request.task(), request.custom_model_src
        first = self.judging.key(task, candidate, 0)
        trouble = self._infra.get(first)
        if trouble and trouble.attempts >= ATTEMPTS and self._clock.monotonic() - trouble.at < GIVEN_UP_S:
            return answer(trouble.verdict, request, terms, evaluator=trouble.evaluator, given_up=True)
        key = self.judging.key(task, candidate, trouble.attempts) if trouble else first
        judging = self._judgings.get(key)
        if judging is None:
            judging = self._judgings[key] = asyncio.create_task(
                self._judge(task, candidate, first, key, request.preferred_device)
            )
        found = await to_the_end(judging)
        return answer(found.verdict, request, terms, evaluator=found.evaluator)

    async def _judge(self, task: Task, candidate: str, first: str, key: str, preferred: int | None) -> Judgement:
        try:
            found = await self.judging.verdict(task, candidate, key, preferred)
        except Exception:
            _remember(self._awaited, key, None)
            raise
        finally:
            del self._judgings[key]
        verdict = found.verdict
        late = key in self._awaited
        self._awaited.pop(key, None)
        (self.stood if found.stood and not late else self.counts)[verdict.kind, verdict.category] += 1
        if verdict.kind == "infra" and verdict.category != BAD_REFERENCE:
            known = self._infra.pop(first, None)
            attempts = known.attempts + 1 if known else 1
            _remember(self._infra, first, _Infra(attempts, self._clock.monotonic(), verdict, found.evaluator))
        else:
            self._wall_s += 0.1 * (verdict.wall_s - self._wall_s)
        return found


def _remember(known: OrderedDict[str, Any], key: str, value: Any) -> None:
    """Set it; the oldest of too many are forgotten."""
    known[key] = value
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
