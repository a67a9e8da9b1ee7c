"""The rollout generator: plays groups of episodes with the current policy.

    consumes     REQUESTS, VERDICTS it asked for, KV policy
    produces     EVALUATIONS, EPISODES (each episode ends as exactly one message, tombstones included),
                 facts `weights_applied`, `weights_refused`
    waits for    a first policy, free slots, verdicts (holding no engine slot meanwhile)
    unblocked by a request, a verdict, a new policy

A redelivered request is played only as far as its episodes are missing; a group that a step has consumed is only
acknowledged. New weights are swapped in between two engine steps, episodes go on; a version counts as held here only
after the weights as loaded have the fingerprint that the learner published. Another fingerprint ends this process.
"""

import asyncio
from typing import ClassVar

import structlog

from actors.actor import Actor
from actors.given_up import bury_group
from bus import facts, subjects
from bus.broker import Delivery
from bus.messages import Ended, Evaluation, Held, Policy, Request
from bus.worker import Worker
from core.episodes.episode import Episode
from core.episodes.play import play_group
from core.episodes.settings import PlaySettings
from core.evaluation.reward import score
from core.evaluation.verdict import Verdict
from core.flow.chain import Chain
from core.identity import candidate_key
from core.tasks.task import Task

log = structlog.get_logger()
FIRST_POLICY_TIMEOUT_S = 600.0


class WrongWeights(RuntimeError):
    """The weights as loaded are not those that the learner published."""


class RolloutGenerator(Actor):
    kind: ClassVar[str] = "generator"

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        from core.episodes.chat import Chat
        from core.generation.load import load_engine, load_tokenizer

        rollout = self.config.rollout
        self._engine = load_engine(
            rollout.engine,
            self.config.model.path,
            dtype=self.config.model.dtype,
            context_tokens=self.config.model.context_tokens,
            batch_rows=rollout.batch_rows,
            threads=rollout.threads,
        )
        self._chat = Chat(
            load_tokenizer(self.config.model.path),
            thinking=self.config.episodes.thinking,
            plain=self.config.episodes.prompt == "kernelllm",
        )
        self._worker = Worker(
            self.bus,
            stream=self.bus.names.requests,
            consumer=subjects.rollout_consumer(),
            kind=Request,
            handler=self._play,
            on_poison=self._poisoned,
            slots=rollout.groups_in_flight,
            ack_wait_s=self.config.bus.ack_wait_s,
        )
        self._worker.held_changed = self.beat_now
        self._held: tuple[int, str] = (-1, "")
        self._first_policy = asyncio.Event()
        self._chain = Chain()
        self._caught_up = asyncio.Event()
        self._next_step_seq = 1
        self._episodes = 0

    async def run(self) -> None:
        await self._engine.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                watchers = [tasks.create_task(self._follow_policy()), tasks.create_task(self._follow_steps())]
                if await self._have_policy():
                    await self._caught_up.wait()  # what is consumed must be known before the first request is played
                    work = tasks.create_task(self._worker.run())
                    await self.stopping.wait()
                    self._worker.stop()
                    await work
                for watcher in watchers:
                    watcher.cancel()
        finally:
            await self._engine.stop()

    async def _have_policy(self) -> bool:
        """Wait for the learner's first policy; False when asked to stop meanwhile."""
        waits = [asyncio.create_task(self._first_policy.wait()), asyncio.create_task(self.stopping.wait())]
        done, pending = await asyncio.wait(waits, timeout=FIRST_POLICY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        if not done:
            raise TimeoutError(f"{self.name} waited {FIRST_POLICY_TIMEOUT_S:.0f} s for the learner's first policy")
        return not self.stopping.is_set()

    # -- playing -----------------------------------------------------------------------------------------------------

    async def _play(self, delivery: Delivery, request: Request) -> None:
        if self._chain.outcome(request.group_id) is not None:
            return
        standing = await self.bus.standing_episodes(request.group_id, request.size)
        missing = sorted(set(range(request.size)) - standing)
        async for episode in play_group(
            request.task,
            group_id=request.group_id,
            indices=missing,
            role=request.role,
            engine=self._engine,
            chat=self._chat,
            judge=lambda task, candidate: self._verdict(task, candidate, request.group_id),
            score=self._score,
            settings=PlaySettings.of(self.config.episodes, self.config.rollout),
            seed=request.seed,
            max_turns=request.max_turns,
            clock=self.clock,
        ):
            await self._publish(request, episode)

    async def _publish(self, request: Request, episode: Episode) -> None:
        await self.bus.publish_ended(
            Ended(
                run_id=self.bus.run_id,
                trace=request.group_id,
                episode=episode,
                admission=request.admission,
                size=request.size,
                generator=self.name,
            )
        )
        self._episodes += 1

    async def _verdict(self, task: Task, candidate: str, trace: str) -> Verdict:
        judge = self.config.judge
        settings = judge.identity()
        key = candidate_key(task.source, candidate, settings, judge.device_class)
        evaluation = Evaluation(
            run_id=self.bus.run_id,
            trace=trace,
            candidate_key=key,
            task=task,
            candidate=candidate,
            settings=settings,
            device_class=judge.device_class,
            asked_at=self.clock.now(),
        )
        try:
            judged = await self.bus.judged(evaluation, timeout_s=self.config.rollout.verdict_timeout_s)
        except TimeoutError as error:
            await self.bus.fact(facts.STALLED, trace=trace, text=str(error))
            return Verdict(candidate_key=key, kind="infra", category="timeout", feedback=str(error))
        return judged.verdict

    def _score(self, verdict: Verdict) -> float | None:
        return score(verdict, **self.config.reward.model_dump())

    async def _poisoned(self, request: Request, why: str) -> None:
        await bury_group(self.bus, request, "poison", why)

    # -- following the learner ---------------------------------------------------------------------------------------

    async def _follow_policy(self) -> None:
        async for policy in self.bus.watch_policy():
            if policy.version != self._held[0] or policy.fingerprint != self._held[1]:
                await self._apply(policy)

    async def _apply(self, policy: Policy) -> None:
        newest = await self.bus.policy()
        if newest is not None and newest.version != policy.version:
            return  # skip to the newest: its own change is on its way
        started = self.clock.monotonic()
        try:
            fingerprint = await self._engine.load_weights(policy.folder, policy.version)
        except FileNotFoundError:
            again = await self.bus.policy()
            if again is not None and again.version != policy.version:
                return  # retention was quicker than we were, and a newer policy stands
            raise
        if fingerprint != policy.fingerprint:
            await self.bus.fact(
                facts.WEIGHTS_REFUSED, version=policy.version, wanted=policy.fingerprint, got=fingerprint
            )
            raise WrongWeights(
                f"version {policy.version}: the weights as loaded have fingerprint {fingerprint}, the learner "
                f"published {policy.fingerprint}; this generator leaves the run"
            )
        self._held = (policy.version, fingerprint)
        self._first_policy.set()
        self.beat_now.set()
        await self.bus.fact(facts.WEIGHTS_APPLIED, version=policy.version, seconds=self.clock.monotonic() - started)

    async def _follow_steps(self) -> None:
        while True:
            steps = await self.bus.read_steps(self._next_step_seq, timeout_s=1.0 if self._caught_up.is_set() else 0.2)
            for seq, step in steps:
                self._next_step_seq = seq + 1
                self._chain.feed(step)
            if not steps:
                self._caught_up.set()

    async def hand_back(self) -> None:
        await self._worker.hand_back()

    def held(self) -> tuple[Held, ...]:
        return self._worker.held

    def policy_held(self) -> tuple[int, str]:
        return self._held

    def gauges(self) -> dict[str, float]:
        return {"episodes": float(self._episodes), **self._engine.gauges()}
