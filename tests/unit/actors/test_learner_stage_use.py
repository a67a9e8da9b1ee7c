"""A learner on a real broker tells with its steps how busy the stages are, by what the actors' beats say."""

import asyncio
import itertools

import pytest

from bus.messages import Beat
from core.clock import SystemClock
from core.flow.stages import limit
from tests.unit.actors.learner_stage import LearnerStage, healthy

COUNTED = {
    "evaluator": {"busy_s": 2.0, "judged": 1.0},
    "generator": {"busy_s": 0.25, "sequence_s": 1.0, "awaited_s": 12.0, "tokens_total": 9.0, "episodes": 1.0},
}
"""In a second: two judging processes that are always at work, 12 candidates that wait for them, and an engine that has
a sequence for a quarter of the time."""


def test_steps_but_the_first_name_the_slowest_stage(tmp_path):
    with LearnerStage(tmp_path, sampler={"max_staleness": 5}) as stage:

        async def beats(buses) -> None:
            clock, began = SystemClock(), SystemClock().now()
            while True:
                at = clock.now()
                for kind, bus in buses.items():
                    counted = {name: rate * (at - began) for name, rate in COUNTED[kind].items()} | {"workers": 2.0}
                    told = Beat(run_id="run", kind=kind, actor=f"{kind}-0", pid=1, host="h", at=at, gauges=counted)
                    await bus.beat(told)
                await asyncio.sleep(0.02)

        async def main():
            buses = {kind: await stage._connect(f"{kind}-0") for kind in COUNTED}
            telling = asyncio.create_task(beats(buses))
            async with stage.learner() as (_, work):
                for n in itertools.count():  # beats may come late on a busy machine: then a step tells less
                    await asyncio.sleep(0.1)
                    await stage.send(healthy(2 * n), healthy(2 * n + 1))
                    *_, latest = steps = await stage.steps(work, n + 1)
                    if "stage/limit" in latest.metrics:
                        break
            telling.cancel()
            await asyncio.wait({telling})
            for bus in buses.values():
                await bus.close()
            assert not [name for name in steps[0].metrics if name.startswith("stage/")], "everybody was starting"
            metrics = latest.metrics
            assert metrics["stage/judging_busy"] == pytest.approx(1.0)
            assert metrics["stage/generation_busy"] == pytest.approx(0.25)
            assert metrics["stage/judging_episodes"] == pytest.approx(12.0)
            assert 0 < metrics["stage/training_busy"] <= 1
            assert limit(metrics) in ("judging", "balanced"), "balanced: this machine is so busy that training is too"

        stage.play(main)
