"""The evaluator: judges candidates in the sandbox.

    consumes     EVALUATIONS of its backend and device class
    produces     VERDICTS (one per candidate key), facts `judged`
    waits for    work
    unblocked by an evaluation

Several run side by side and share the queue; they join and leave without configuration. A verdict that stands for the
same key answers at once. Trouble on our side is retried in the judge and never published as a score; a message that
fails again and again ends as an `infra` verdict.
"""

import asyncio
import os
from typing import ClassVar

import structlog

from actors import gpu_calls
from actors.actor import Actor
from actors.cards import take_cards
from actors.given_up import infra_verdict
from actors.preference import hand_back_s
from bus import facts, subjects
from bus.broker import Delivery
from bus.messages import Evaluation, Held, Judged
from bus.worker import Retry, Worker
from configs.cards import shared_by
from core.evaluation.pool import JudgePool, JudgeUnfit
from core.evaluation.settings import JudgeSettings
from core.evaluation.walls import gpu as gpu_walls

log = structlog.get_logger()
UNFIT_PAUSE_S = 30.0
"""Work waits so long, or goes to another evaluator, when this one's GPU can't be used."""


def judge_settings(config) -> JudgeSettings:
    """The judge's own settings from a run's config."""
    chosen = config.judge.model_dump(exclude={"workers", "cache", "cards"})
    return JudgeSettings(**chosen)


class Evaluator(Actor):
    kind: ClassVar[str] = "evaluator"

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        judge = self.config.judge
        self._shares = ""
        if judge.device_class != "cpu":
            if os.environ.get("KERNELMILL_SUPERVISED"):  # learner and generators are on this machine too
                self._shares = shared_by(self.config, self.name, len(gpu_walls.shown()))
            take_cards(judge.cards_of(self.name), "judge.cards")
        self._pool = JudgePool(judge_settings(self.config), judge.workers)
        self._worker = Worker(
            self.bus,
            stream=self.bus.names.evaluations,
            consumer=subjects.evaluate_consumer(self.config.tasks.backend, judge.device_class),
            kind=Evaluation,
            handler=self._judge,
            on_poison=self._poisoned,
            slots=judge.workers,
            ack_wait_s=self.config.bus.ack_wait_s,
        )
        self._worker.held_changed = self.beat_now
        self._cached = 0
        self._gpus = gpu_calls.GpuReport(gpu_calls.used_by(judge.workers, judge.device_class != "cpu"))

    async def run(self) -> None:
        if self._shares:
            log.warning("shares its GPUs", detail=self._shares)
        start = asyncio.create_task(self._pool.start())
        stop = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                work = asyncio.create_task(self._worker.run())
                calls = asyncio.create_task(gpu_calls.follow(self.bus, self._gpus))
                await asyncio.wait({work, stop, calls}, return_when=asyncio.FIRST_COMPLETED)
                self._worker.stop()
                await work
                if calls.done():
                    calls.result()
                calls.cancel()
        finally:
            start.cancel()
            stop.cancel()
            await self._pool.stop()

    async def _judge(self, delivery: Delivery, evaluation: Evaluation) -> None:
        if self.config.judge.cache and (await self.bus.standing_verdict(evaluation.candidate_key)) is not None:
            self._cached += 1
            return
        if pause_s := hand_back_s(evaluation, self.name, delivery.deliveries):
            raise Retry(pause_s, "another evaluator is preferred")
        try:
            verdict = await self._pool.judge(evaluation.task, evaluation.candidate, evaluation.candidate_key)
        except JudgeUnfit as error:
            log.warning("unfit", reason=str(error))
            raise Retry(UNFIT_PAUSE_S, str(error)) from None
        await self.bus.publish_judged(
            Judged(run_id=self.bus.run_id, trace=evaluation.trace, verdict=verdict, evaluator=self.name)
        )
        await self.bus.fact(
            facts.JUDGED,
            trace=evaluation.trace,
            candidate_key=evaluation.candidate_key,
            verdict=verdict.kind,
            category=verdict.category,
            wall_s=verdict.wall_s,
            waited_s=max(0.0, self.clock.now() - evaluation.asked_at),
            deliveries=delivery.deliveries,
        )

    async def _poisoned(self, evaluation: Evaluation, why: str) -> None:
        await self.bus.publish_judged(infra_verdict(evaluation, why, self.name))

    async def hand_back(self) -> None:
        await self._worker.hand_back()

    def held(self) -> tuple[Held, ...]:
        return self._worker.held

    def gauges(self) -> dict[str, float]:
        return {
            "verdicts_total": float(self._worker.done),
            "verdicts_cached": float(self._cached),
            **self._pool.gauges(),
            **self._gpus.gauges(),
        }
