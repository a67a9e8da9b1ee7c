"""The gateway: the eval server's HTTP API in front of a run's evaluators.

    consumes     VERDICTS it asked for, facts `judged`, beats of the evaluators
    produces     EVALUATIONS, HTTP answers
    waits for    requests, verdicts
    unblocked by either

It holds no state that matters: verdicts stand on the bus, so after a restart clients ask again and are answered from
there. Any number of gateways may stand in front of one run. Candidates have the same keys as the generators' own, so a
verdict that stands for one serves the other.
"""

import asyncio
import os
from typing import Any, ClassVar

import structlog

from actors import gpu_calls, preference
from actors.actor import Actor
from actors.eval_api import Terms
from actors.eval_desk import Desk, Device, Judgement
from actors.eval_http import EvalServer, listen
from actors.evaluator import judge_settings
from actors.fault_book import FaultBook
from actors.stalled import tell
from bus import facts
from bus.messages import Beat, Evaluation
from bus.run_bus import RunBus
from configs.schema import RunConfig
from core.clock import Clock
from core.evaluation.gpu.condition import read_gauges
from core.evaluation.waits import longest_s
from core.identity import candidate_key
from core.tasks.task import Task

log = structlog.get_logger()
TOKEN = "KERNELMILL_GATEWAY_TOKEN"
"""Environment variable with the bearer token; no config holds it, since configs are kept and shown."""
GONE_S = 60.0
"""Without an evaluator for this long, requests are refused; until then they wait for one that may be restarting."""


class RunJudging:
    """The evaluators of a run, by NATS; `actors.eval_desk.Judging`."""

    def __init__(self, config: RunConfig, bus: RunBus, book: FaultBook, clock: Clock) -> None:
        judge = config.judge
        self.terms = Terms(
            backends=(config.tasks.backend,),
            device_class=judge.device_class,
            target=judge.target,
            draws=judge.draws,
            modelled_runtime=config.gateway.modelled_runtime,
        )
        self._settings = judge.identity()
        self._timeout_s = config.gateway.verdict_timeout_s or longest_s(judge_settings(config))
        self._bus = bus
        self._book = book
        self._clock = clock
        self._beats: dict[str, Beat] = {}
        self._last_seen = clock.monotonic()

    def key(self, task: Task, candidate: str, attempt: int) -> str:
        settings = {**self._settings, "attempt": attempt} if attempt else self._settings
        return candidate_key(task.source, candidate, settings, self.terms.device_class)

    async def verdict(self, task: Task, candidate: str, key: str, preferred: int | None) -> Judgement:
        names = self._book.names
        wish = names[preferred] if preferred is not None and 0 <= preferred < len(names) else ""
        evaluation = Evaluation(
            run_id=self._bus.run_id,
            trace="gateway",
            candidate_key=key,
            task=task,
            candidate=candidate,
            settings={**self._settings, **({preference.NAME: wish} if wish in self._beats else {})},
            device_class=self.terms.device_class,
            asked_at=self._clock.now(),
        )
        try:
            judged, stood = await self._bus.judged_or_stood(evaluation, timeout_s=self._timeout_s)
        except TimeoutError as error:
            await tell(self._bus, str(error))
            raise
        return Judgement(verdict=judged.verdict, evaluator=judged.evaluator, stood=stood)

    async def probe(self, number: int) -> dict[str, Any]:
        name = self._book.names[number]
        beat = self._beats.get(name)
        if beat is None:
            raise TimeoutError(f"{name} is not in the run now")
        if read_gauges(beat.gauges) is None:
            return {}
        return await gpu_calls.call(self._bus, name)

    def devices(self) -> list[Device]:
        return [self._device(number, name) for number, name in enumerate(self._book.names)]

    def unready(self) -> str:
        if self._beats:
            self._last_seen = self._clock.monotonic()
        absent_s = self._clock.monotonic() - self._last_seen
        return f"no evaluator has been in the run for {absent_s:.0f} s" if absent_s > GONE_S else ""

    def _device(self, number: int, name: str) -> Device:
        beat = self._beats.get(name)
        if beat is None:
            return Device(id=number, name=name)
        return Device(
            id=number,
            name=name,
            workers=int(beat.gauges.get("workers", 0)),
            busy=int(beat.gauges.get("busy", 0)),
            alive=True,
            restarts=int(beat.gauges.get("worker_restarts", 0)),
            judged=int(beat.gauges.get("judged", 0)),
            gpu=read_gauges(beat.gauges),
        )

    async def follow_evaluators(self) -> None:
        """Who is there, from their beats."""
        async for name, beat in self._bus.watch_actors():
            if beat is not None and beat.kind == "evaluator" and not beat.gauges.get("leaving"):
                self._book.number(name)
                self._beats[name] = beat
            elif self._beats.pop(name, None) is not None:
                self._last_seen = self._clock.monotonic()

    async def follow_faults(self) -> None:
        """Every new verdict of the run, whoever asked for it."""
        next_seq = (await self._bus.broker.stream_state(self._bus.names.facts)).last_seq + 1
        while True:
            for seq, fact in await self._bus.read_facts(next_seq):
                next_seq = seq + 1
                if fact.kind == facts.JUDGED:
                    self._book.count(fact.actor, fact.data.get("verdict", ""), fact.data.get("category", ""))


class Gateway(Actor):
    kind: ClassVar[str] = "gateway"

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        settings = self.config.gateway
        token = os.environ.get(TOKEN, "")
        self._book = FaultBook(settings.max_faults)
        self._judging = RunJudging(self.config, self.bus, self._book, self.clock)
        self._desk = Desk(self._judging, places=settings.places, clock=self.clock)
        self._listening = listen(settings.host, settings.port, token)
        self._server = EvalServer(self._desk, self._book, token=token, max_request_bytes=1024 * settings.max_request_kb)

    async def run(self) -> None:
        watchers = [
            asyncio.create_task(self._judging.follow_evaluators()),
            asyncio.create_task(self._judging.follow_faults()),
        ]
        stop = asyncio.create_task(self.stopping.wait())
        await self._server.start(self._listening)
        host, port = self._listening.getsockname()[:2]
        log.info("listening", url=f"http://{host}:{port}")
        try:
            await asyncio.wait({stop, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            for watcher in watchers:
                if watcher.done():
                    watcher.result()
        finally:
            stop.cancel()
            await self._server.stop(grace_s=0.8 * self.grace_s)
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    def gauges(self) -> dict[str, float]:
        return {
            "gateway_requests": float(self._desk.taken),
            "gateway_candidates": float(self._desk.in_hand),
            "gateway_answers": float(self._server.statuses.total()),
            "gateway_faults": float(self._book.total),
        }
