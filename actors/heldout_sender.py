"""The sampler's second hand: has policy versions evaluated on held-out tasks while the run trains.

    consumes     FACTS (`heldout`: a group's answer; what it said itself before a restart)
    produces     REQUESTS with `heldout` set, facts `evaluation_begun`, `evaluated`
    waits for    a version that is due and held by every generator; answers
    unblocked by a step, a generator's beat, a fact; an answer that does not come in `answer_timeout_s` is given up

What was begun stands in FACTS before the first request does, so that a sampler that starts again goes on with the same
round, and asks only for what was neither answered nor still stands in the queue.
"""

from collections.abc import Callable

import msgspec
import structlog

from actors.stalled import tell
from bus import facts
from bus.messages import Fact, Request
from bus.run_bus import RunBus
from configs.schema import RunConfig
from core.clock import Clock
from core.episodes.heldout_figures import HeldOutEpisode
from core.flow.chain import Chain
from core.flow.heldout_rounds import HeldOutRounds
from core.identity import digest
from core.tasks.loading import load_tasks
from core.tasks.rows import Refused

log = structlog.get_logger()


class HeldOutSender:
    """`chain` and `held_version` (the oldest policy that a live generator samples with) are the sampler's."""

    def __init__(
        self, config: RunConfig, bus: RunBus, clock: Clock, *, chain: Chain, held_version: Callable[[], int]
    ) -> None:
        """Raises TaskError when the held-out tasks can't be had."""
        self._config, self._bus, self._clock = config, bus, clock
        self._chain, self._held_version = chain, held_version
        chosen = config.evaluation
        sources = [source.model_dump() for source in config.tasks.heldout]
        skip: list[Refused] | None = [] if config.tasks.refused == "skip" else None
        tasks = load_tasks(sources, config.tasks.backend, "heldout", skip)
        self._tasks = tasks[: chosen.tasks or None]
        self.rounds = HeldOutRounds(
            bus.run_id,
            [task.task_id for task in self._tasks],
            every_steps=chosen.every_steps,
            total_steps=config.run.steps,
            in_flight=chosen.groups_in_flight,
        )

    async def run(self) -> None:
        """Until cancelled."""
        next_seq, caught_up = 1, False
        while True:
            batch = await self._bus.read_facts(next_seq)
            for seq, fact in batch:
                next_seq = seq + 1
                self._take(fact)
            caught_up = caught_up or not batch  # what stands must be known before anything is asked for
            if caught_up:
                await self._go_on()

    def _take(self, fact: Fact) -> None:
        data = fact.data
        if fact.kind == facts.EVALUATION_BEGUN:
            self.rounds.begin(data["version"])
        elif fact.kind == facts.EVALUATED:
            self.rounds.close(data["version"])
        elif fact.kind == facts.HELDOUT:
            episodes = msgspec.convert(data["episodes"], list[HeldOutEpisode])
            # The kernels stand in the record; here only figures are made.
            slim = [
                msgspec.structs.replace(
                    episode, turns=tuple(msgspec.structs.replace(turn, candidate=None) for turn in episode.turns)
                )
                for episode in episodes
            ]
            self.rounds.answered(data["group_id"], data["version"], slim)

    async def _go_on(self) -> None:
        rounds = self.rounds
        policy = await self._bus.policy()
        if self._chain.finished or policy is None or self._chain.version < policy.version:
            return  # over, not begun, or the chain is not read yet
        held = min(policy.version, self._held_version())
        if rounds.due(held):
            samples = self._config.evaluation.samples
            await self._bus.fact(facts.EVALUATION_BEGUN, version=held, tasks=len(self._tasks), samples=samples)
            rounds.begin(held)
            log.info("held-out evaluation", version=held, tasks=len(self._tasks))
        if rounds.open is None:
            return
        if held >= rounds.open:
            for group_id, position in rounds.to_ask():
                await self._ask(rounds.open, group_id, position)
        patience_s = self._config.evaluation.answer_timeout_s
        if overdue := rounds.overdue(self._clock.monotonic() - patience_s):
            groups = "1 held-out group" if len(overdue) == 1 else f"{len(overdue)} held-out groups"
            await tell(
                self._bus, f"{self._bus.actor} waited {patience_s:g} s for {groups} of version {rounds.open}: given up"
            )
        for group_id in overdue:
            log.warning("held-out group given up: no answer", version=rounds.open, trace=group_id)
            rounds.answered(group_id, rounds.open, ())
        if rounds.complete:
            await self._bus.fact(facts.EVALUATED, **rounds.result(self._config.episodes.max_turns))
            rounds.close(rounds.open)

    async def _ask(self, version: int, group_id: str, position: int) -> None:
        task = self._tasks[position]
        seed = str(self._config.run.seed)
        await self._bus.publish_request(
            Request(
                run_id=self._bus.run_id,
                trace=group_id,
                group_id=group_id,
                admission=-1,  # it is none
                task=task,
                size=self._config.evaluation.samples,
                max_turns=self._config.episodes.max_turns,
                seed=int(digest(seed, task.task_id, size=7), 16),  # of no version: equal draws for all of them
                admitted_at=self._clock.now(),
                heldout=True,
                version=version,
            )
        )
        self.rounds.asked(group_id, self._clock.monotonic())
