"""Feeds the terminal view from the bus: steps, facts, beats, queue depths and the ledger, as they come."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bus import facts, subjects
from bus.run_bus import RunBus
from configs.schema import RunConfig
from core.flow.ledger import Admission, ChainRecord, settle

QUEUES_EVERY_S = 1.0
Feed = Callable[[Mapping[str, Any], float], None]


class Watching:
    """Follows one run over its bus; `feed(event, now)` gets what `runners.live_state` understands."""

    def __init__(self, bus: RunBus, config: RunConfig, feed: Feed) -> None:
        self._bus = bus
        self._config = config
        self._feed_to = feed
        self._admitted: list[Admission] = []
        self._chain: list[ChainRecord] = []

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_steps())
            tasks.create_task(self._follow_facts())
            tasks.create_task(self._follow_beats())
            tasks.create_task(self._poll_queues())

    def _feed(self, event: Mapping[str, Any]) -> None:
        self._feed_to(event, time.time())

    async def _follow_steps(self) -> None:
        next_seq = 1
        while True:
            for seq, step in await self._bus.read_steps(next_seq):
                next_seq = seq + 1
                self._chain.append(msgspec.convert(msgspec.to_builtins(step), ChainRecord))
                self._feed(msgspec.to_builtins(step))

    async def _follow_facts(self) -> None:
        next_seq = 1
        while True:
            for seq, fact in await self._bus.read_facts(next_seq):
                next_seq = seq + 1
                if fact.kind == facts.ADMITTED:
                    self._admitted.append(msgspec.convert(fact.data, Admission))
                self._feed(msgspec.to_builtins(fact))

    async def _follow_beats(self) -> None:
        async for _, beat in self._bus.watch_actors():
            if beat is not None:
                self._feed(msgspec.to_builtins(beat))

    async def _poll_queues(self) -> None:
        config, names = self._config, self._bus.names
        wanted = config.run.steps
        judge = subjects.evaluate_consumer(config.tasks.backend, config.judge.device_class)
        while True:
            await asyncio.sleep(QUEUES_EVERY_S)
            try:
                requests = await self._bus.broker.consumer_state(names.requests, subjects.rollout_consumer())
                evaluations = await self._bus.broker.consumer_state(names.evaluations, judge)
            except TimeoutError:  # the broker is away; the next look tells
                continue
            self._feed(
                {
                    "type": "queues",
                    "requests": requests.waiting + requests.in_flight,
                    "evaluations": evaluations.waiting + evaluations.in_flight,
                }
            )
            self._feed({"type": "ledger", **settle(self._admitted, self._chain, steps_wanted=wanted).as_dict()})
