"""The rollout generator: plays groups of episodes with the current policy.

    consumes     REQUESTS, VERDICTS it asked for, KV policy
    produces     EVALUATIONS, EPISODES (each episode ends as exactly one message, tombstones included),
                 facts `weights_applied`, `weights_refused`, `heldout`
    waits for    a first policy, free slots, verdicts (holding no engine slot meanwhile)
    unblocked by a request, a verdict, a new policy

A redelivered request is played only as far as its episodes are missing; a group that a step has consumed is only
acknowledged. New weights are swapped in between two engine steps, episodes go on. A version samples, and counts as held
here, only after the weights as loaded have the fingerprint that the learner published; another fingerprint ends this
process, and so does an engine that fails: the work in hand is no worse for it and is handed on. Held-out requests run
beside training on a pinned version; they are answered by a fact and leave no episode for the learner.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import msgspec
import structlog

from actors import stalled
from actors.actor import Actor
from actors.adapter_blobs import local_source
from actors.cards import number_cards, take_cards
from actors.given_up import bury_group
from actors.parity_check import check_parity
from bus import facts, subjects
from bus.broker import Delivery, TooLarge
from bus.messages import Ended, Evaluation, Held, Policy, Request
from bus.worker import Retry, Worker
from core.episodes.episode import Episode, tombstone
from core.episodes.heldout_figures import slim
from core.episodes.play import play_group
from core.episodes.settings import PlaySettings
from core.evaluation.reward import score
from core.evaluation.verdict import Verdict
from core.flow.chain import Chain
from core.generation.engine import Engine
from core.generation.errors import EngineStopped, WeightsNotReceived, WrongWeights
from core.generation.lanes import Lanes, PinLost
from core.generation.parity import ParityError
from core.identity import candidate_key
from core.present import Present
from core.tasks.task import Task

log = structlog.get_logger()
FIRST_POLICY_TIMEOUT_S = 600.0
PINS = 3
"""A held-out group whose version was replaced is played anew so often."""
_AGAIN_S = 1.0
_TOO_OLD_S = 2.0
"""A held-out request for a version that is not here yet is put back for so long."""


class RolloutGenerator(Actor):
    kind: ClassVar[str] = "generator"

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        from core.episodes.chat import Chat
        from core.generation.load import load_engine, load_tokenizer

        rollout = self.config.rollout
        take_cards(rollout.cards_of(self.name), "rollout.cards")
        number_cards()  # vLLM
        self._engine = Lanes(
            load_engine(
                rollout.engine,
                self.config.model.path,
                dtype=self.config.model.dtype,
                context_tokens=self.config.model.context_tokens,
                batch_rows=rollout.batch_rows,
                threads=rollout.threads,
                vllm=rollout.vllm.model_dump(),
            )
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
        self._settings = PlaySettings.of(self.config.episodes, rollout)
        self._worker.held_changed = self.beat_now
        self._held: tuple[int, str] = (-1, "")
        self._live: Policy | None = None
        """The policy whose weights the engine holds."""
        self._given_back = False
        self._loading = asyncio.Lock()
        self._engine_failed: list[EngineStopped] = []
        self._engine_ended = asyncio.Event()
        self._first_policy = asyncio.Event()
        self._chain = Chain()
        self._caught_up = asyncio.Event()
        self._next_step_seq = 1
        self._episodes = 0
        self._awaiting = Present()

    async def run(self) -> None:
        await self._engine.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                watchers = [
                    tasks.create_task(watch)
                    for watch in (self._follow_policy(), self._follow_steps(), self._watch_engine())
                ]
                if await self._have_policy():
                    await check_parity(self._engine, self._policy, self._chat, self.config, self.clock)
                    await self._caught_up.wait()  # what is consumed must be known before the first request is played
                    work = tasks.create_task(self._worker.run())
                    await self.stopping.wait()
                    self._worker.stop()
                    await work
                for watcher in watchers:
                    watcher.cancel()
        except BaseExceptionGroup as errors:
            for kind in (ParityError, WrongWeights, EngineStopped):
                if told := [error for error in leaves(errors) if isinstance(error, kind)]:
                    raise told[0] from None
            raise
        finally:
            await self._engine.stop()

    def _policy(self) -> Policy:
        assert self._live is not None
        return self._live

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
        try:
            if request.heldout:
                await self._evaluate(request)
            elif self._chain.outcome(request.group_id) is None:
                standing = await self.bus.standing_episodes(request.group_id, request.size)
                missing = sorted(set(range(request.size)) - standing)
                if standing:
                    log.info("group taken over", standing=sorted(standing), missing=missing, trace=request.group_id)
                async for episode in self._group(request, missing, self._engine, self._settings):
                    await self._publish(request, episode)
        except EngineStopped as error:
            # No failure of this work, of which three bury it: this process ends, and what it holds is handed on.
            self._engine_failed.append(error)
            self._engine_ended.set()
            await asyncio.Event().wait()

    def _group(
        self, request: Request, indices: Sequence[int], engine: Engine, settings: PlaySettings
    ) -> AsyncIterator[Episode]:
        return play_group(
            request.task,
            group_id=request.group_id,
            indices=indices,
            role=request.role,
            engine=engine,
            chat=self._chat,
            judge=lambda task, candidate: self._verdict(task, candidate, request.group_id),
            score=self._score,
            settings=settings,
            seed=request.seed,
            max_turns=request.max_turns,
            clock=self.clock,
        )

    async def _evaluate(self, request: Request) -> None:
        """All episodes by one version, the one asked for or a newer one; a version that was replaced meanwhile gives
        way to the newer one."""
        settings = self._settings
        if self.config.evaluation.greedy:
            settings = msgspec.structs.replace(settings, temperature=0.0, top_p=1.0, top_k=0)
        for attempt in range(1, PINS + 1):
            try:
                async with self._engine.pinned(self.config.rollout.heldout_hold_s) as view:
                    if view.version < request.version:  # the learner, or this generator, was set back
                        raise Retry(_TOO_OLD_S, f"version {view.version} is here, {request.version} is to be evaluated")
                    group = self._group(request, range(request.size), view, settings)
                    episodes = [episode async for episode in group]
                    break
            except PinLost as lost:
                if attempt == PINS:
                    raise
                log.info("held-out group played anew", why=str(lost), trace=request.group_id)
        played = sorted(episodes, key=lambda episode: episode.index)
        for candidates in (True, False):
            try:
                await self.bus.fact(
                    facts.HELDOUT,
                    trace=request.group_id,
                    group_id=request.group_id,
                    version=view.version,
                    seed=request.seed,
                    episodes=msgspec.to_builtins(slim(played, candidates=candidates)),
                )
                break
            except TooLarge as error:
                if not candidates:
                    raise
                log.warning("held-out kernels left out of the answer", why=str(error), trace=request.group_id)

    async def _publish(self, request: Request, episode: Episode) -> None:
        ended = Ended(
            run_id=self.bus.run_id,
            trace=request.group_id,
            episode=episode,
            admission=request.admission,
            size=request.size,
            generator=self.name,
        )
        try:
            await self.bus.publish_ended(ended)
        except TooLarge as error:  # played again it would be as large: it ends as a tombstone, and the group closes
            log.error("episode too large", why=str(error), fact=facts.REFUSED, trace=request.group_id)
            subject = subjects.episode(self.bus.run_id, episode.group_id, episode.index)
            await self.bus.fact(facts.REFUSED, trace=request.group_id, subject=subject, reason=str(error))
            await self.bus.publish_ended(msgspec.structs.replace(ended, episode=oversize(episode, str(error))))
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
            with self._awaiting:
                judged = await self.bus.judged(evaluation, timeout_s=self.config.rollout.verdict_timeout_s)
        except TimeoutError as error:
            await stalled.tell(self.bus, str(error), trace)
            return Verdict(candidate_key=key, kind="infra", category="timeout", feedback=str(error))
        return judged.verdict

    def _score(self, verdict: Verdict) -> float | None:
        return score(verdict, **self.config.reward.model_dump())

    async def _poisoned(self, request: Request, why: str) -> None:
        await bury_group(self.bus, request, "poison", why)

    # -- following the learner ---------------------------------------------------------------------------------------

    async def _follow_policy(self) -> None:
        async for policy in self.bus.watch_policy():
            if (policy.version, policy.fingerprint) != self._held:
                await self._apply(policy)
            else:
                self._live = policy  # another learner, the same weights

    async def _apply(self, policy: Policy) -> None:
        if await self._replaced(policy):
            return  # skip to the newest: its own change is on its way
        started = self.clock.monotonic()
        async with self._loading:
            try:
                if not await self._load(policy):
                    return
            except EngineStopped as error:
                told = {}
                if isinstance(error, WrongWeights):
                    told = {"fact": facts.WEIGHTS_REFUSED}
                    await self.bus.fact(
                        facts.WEIGHTS_REFUSED, version=error.version, wanted=error.wanted, got=error.got
                    )
                log.error("this generator leaves the run", why=str(error), **told)
                await self._give_back()
                raise
        self._held = (policy.version, policy.fingerprint)
        self._live = policy
        self._first_policy.set()
        self.beat_now.set()
        await self.bus.fact(facts.WEIGHTS_APPLIED, version=policy.version, seconds=self.clock.monotonic() - started)

    async def _load(self, policy: Policy) -> bool:
        """Have the policy's weights loaded from wherever they can be had; False when another policy stands by now.

        Raises WrongWeights, ValueError when the folder's weights are not this model's, TimeoutError when there was no
        way to them in `apply_timeout_s` (a learner that was killed publishes anew when it is back).
        """
        patience_s = self.config.weights.apply_timeout_s
        deadline = self.clock.monotonic() + patience_s
        told: set[str] = set()
        while True:
            for source in filter(None, (policy.source, policy.folder)):
                try:
                    async with local_source(self.bus, source, patience_s) as here:
                        await self._engine.load_weights(here, policy.version, policy.fingerprint)
                    return True
                except (FileNotFoundError, TimeoutError, ValueError, WeightsNotReceived) as error:
                    if isinstance(error, ValueError) and source == policy.folder:
                        raise
                    why = f"{type(error).__name__}: {error}"
                    if await self._replaced(policy):
                        return False
                    if source not in told:
                        told.add(source)
                        log.warning("weights not received", source=source, version=policy.version, why=why)
                        if isinstance(error, TimeoutError):
                            await stalled.tell(self.bus, f"{self.name}, for version {policy.version}: {error}")
            if self.clock.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.name} could not have the weights of version {policy.version} in {patience_s:g} s: {why}"
                )
            await asyncio.sleep(_AGAIN_S)

    async def _replaced(self, policy: Policy) -> bool:
        newest = await self.bus.policy()
        return newest is not None and newest != policy

    async def _watch_engine(self) -> None:
        await self._engine_ended.wait()
        async with self._loading:  # weights that ended it tell why
            await self._give_back()
        raise self._engine_failed[0]

    async def _give_back(self) -> None:
        """Before this process ends by its own fault: what it holds is handed on at once, and its death counts against
        none of it."""
        self._worker.stop()
        await self._worker.hand_back()
        self._given_back = True
        await self._beat()

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
        return () if self._given_back else self._worker.held

    def policy_held(self) -> tuple[int, str]:
        return self._held

    def gauges(self) -> dict[str, float]:
        return {
            "episodes": float(self._episodes),
            "awaiting": float(self._awaiting.count),
            "awaited_s": self._awaiting.seconds,
            **self._engine.gauges(),
        }


def oversize(episode: Episode, why: str) -> Episode:
    """The tombstone of an episode that could not be handed over."""
    known = {"level": episode.level, "role": episode.role}
    return tombstone(episode.group_id, episode.index, episode.task_id, "oversize", why, **known)


def leaves(errors: BaseExceptionGroup) -> list[BaseException]:
    """All exceptions in a group of groups."""
    return [
        leaf
        for error in errors.exceptions
        for leaf in (leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
