"""Judging by a pool in this process, for a gateway without a run; verdicts are kept in memory."""

import asyncio
from collections import OrderedDict
from typing import Any

from actors.eval_api import Terms
from actors.eval_desk import Device, Judgement
from actors.fault_book import FaultBook
from actors.gpu_calls import GpuReport, used_by
from core.evaluation.gpu.condition import read_gauges
from core.evaluation.pool import JudgePool, JudgeUnfit
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.evaluation.waits import longest_s
from core.identity import candidate_key
from core.tasks.task import BACKENDS, Task

NAME = "local"
KEPT = 10_000


class PoolJudging:
    """`actors.eval_desk.Judging` over one JudgePool."""

    def __init__(
        self,
        settings: JudgeSettings,
        workers: int,
        book: FaultBook,
        *,
        timeout_s: float = 0.0,
        modelled_runtime: bool = False,
    ) -> None:
        """`timeout_s` is how long one request waits; 0: as long as a worker may take for its answer."""
        self.terms = Terms(
            backends=BACKENDS,
            device_class=settings.device_class,
            target=settings.target,
            draws=settings.draws,
            modelled_runtime=modelled_runtime,
        )
        self._pool = JudgePool(settings, workers)
        self._gpus = GpuReport(used_by(workers, settings.on_gpu))
        self._book = book
        self._timeout_s = timeout_s or longest_s(settings)
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self._judgings: dict[str, asyncio.Task[Verdict]] = {}
        book.number(NAME)

    async def start(self) -> None:
        """Raises JudgeError when this machine can't judge."""
        await self._pool.start()

    async def stop(self) -> None:
        for judging in self._judgings.values():
            judging.cancel()
        await asyncio.gather(*self._judgings.values(), return_exceptions=True)
        await self._pool.stop()

    @property
    def walls(self) -> str:
        return self._pool.walls

    def key(self, task: Task, candidate: str, attempt: int) -> str:
        settings = {**self._pool.settings.identity(), "backend": task.backend, "attempt": attempt}
        return candidate_key(task.source, candidate, settings, self.terms.device_class)

    async def probe(self, number: int) -> dict[str, Any]:
        return await self._gpus.probe()

    async def verdict(self, task: Task, candidate: str, key: str, preferred: int | None) -> Judgement:
        """There is one device here, so a preference has nothing to choose. A judging that takes too long goes on
        without whoever waited: cancelling it would cost its worker."""
        known = self._verdicts.get(key)
        if known is not None:
            return Judgement(verdict=known, evaluator=NAME, stood=True)
        judging = self._judgings.get(key)
        if judging is None:
            judging = self._judgings[key] = asyncio.create_task(self._judge(task, candidate, key))
        done, _ = await asyncio.wait({judging}, timeout=self._timeout_s)
        if not done:
            raise TimeoutError(f"waited {self._timeout_s:.0f} s for a free worker and its verdict")
        return Judgement(verdict=judging.result(), evaluator=NAME)

    async def _judge(self, task: Task, candidate: str, key: str) -> Verdict:
        try:
            verdict = await self._pool.judge(task, candidate, key)
        except JudgeUnfit as error:
            verdict = Verdict(
                candidate_key=key, kind="infra", stage="load", category="infra", feedback=str(error)[:400]
            )
        finally:
            del self._judgings[key]
        self._book.count_verdict(NAME, verdict)
        self._verdicts[key] = verdict
        if len(self._verdicts) > KEPT:
            self._verdicts.popitem(last=False)
        return verdict

    def devices(self) -> list[Device]:
        gauges = self._pool.gauges()
        return [
            Device(
                id=self._book.number(NAME),
                name=NAME,
                workers=int(gauges["workers"]),
                busy=int(gauges["busy"]),
                alive=True,
                restarts=int(gauges["worker_restarts"]),
                judged=int(gauges["judged"]),
                gpu=read_gauges(self._gpus.gauges()),
            )
        ]

    def unready(self) -> str:
        return ""
