"""The learner: trains the policy on groups of episodes and hands the new weights out.

    consumes     EPISODES by position, its own newest committed checkpoint, beats of all actors (which stage is slowest)
    produces     STEPS (compare-and-set: a zombie learner is fenced), weights + KV policy,
                 facts `weights_published`, `checkpoint_written`, `other_settings`, `finished`
    waits for    groups_per_step complete groups inside the window
    unblocked by episodes

While a step runs, episodes are fetched and the next batch is planned and packed; weights and checkpoints are written
from snapshots of the step that made them, beside the next step (`actors.learner_stages`). Both go out in order and one
at a time, and a checkpoint holds weights, optimizer and collector of one moment: right after its step was appended.

One incarnation writes at a time. A learner that takes over reads the chain, loads the newest committed checkpoint and
appends an `incarnation` record: what earlier incarnations trained after that checkpoint is void and comes back from
the log. Weights, optimizer, random states, log position and all consumed group ids roll back together.

The bus loop runs in a thread of its own; torch runs in the main thread behind `actors.compute`.
"""

import asyncio
import shutil
from typing import TYPE_CHECKING, ClassVar

import msgspec
import structlog

from actors import stalled
from actors.actor import Actor
from actors.adapter_blobs import AdapterBlobs
from actors.agreement import tell_other_settings
from actors.compute import MainThreadCalls
from actors.learner_parts import Fenced, intake, outgoing, step_figures, trainer_settings, where_to_go_on
from actors.learner_stages import Ahead, Beside, StageTimes, follow_beats
from bus import facts
from bus.broker import SequenceConflict
from bus.messages import Policy, Step
from core.checkpoints import store
from core.flow.chain import Chain, GroupOutcome
from core.flow.collector import Collector, CollectorState, Group
from core.flow.stages import StageUse
from core.weights.filesystem import incarnation_folder, retire, run_root, version_folder

if TYPE_CHECKING:
    from core.training.ranks import RankGroup
    from core.training.selection import DynamicSampling
    from core.weights.outgoing import Outgoing

log = structlog.get_logger()
COMMIT_TIMEOUT_S = 120.0


class Learner(Actor):
    kind: ClassVar[str] = "learner"
    only_one = True
    grace_s: ClassVar[float] = 60.0

    def __init__(self, *args, compute: MainThreadCalls, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._compute = compute
        self._selection: DynamicSampling | None = None
        self._loaded: RankGroup | None = None
        self._chain = Chain()
        self._chain_seq = 0
        self._collector = self._new_collector()
        self._arrived = asyncio.Event()
        self._incarnation = 0
        self._outgoing: Outgoing | None = None
        self._retired = False
        self._adapter_blobs = AdapterBlobs(self.bus, keep=self.config.weights.keep)
        self._stages = StageTimes(self.clock)
        self._use = StageUse(self.config.bus.dead_after_s)
        self._ahead = Ahead(self._take_in)
        self._publishing, self._checkpointing = Beside(), Beside()
        self._after_step: CollectorState | None = None
        """Of the moment right after the latest step, while no checkpoint holds that step."""

    def _new_collector(self, state: CollectorState | None = None) -> Collector:
        sampler = self.config.sampler
        return Collector(groups_per_step=sampler.groups_per_step, window=sampler.window, state=state)

    @property
    def _step(self) -> int:
        """Optimizer updates behind the weights; one update is one policy version."""
        return self._loaded.version if self._loaded is not None else 0

    @property
    def _ranks(self) -> "RankGroup":
        assert self._loaded is not None, "a learner trains once it has taken over"
        return self._loaded

    async def run(self) -> None:
        await self._take_over()
        reader = asyncio.create_task(self._follow_episodes())
        beats = asyncio.create_task(follow_beats(self.bus, self._use))
        try:
            await self._publish_weights()
            await self._publishing.free()  # generators have nothing to sample with before
            while self._step < self.config.run.steps and (groups := await self._next_groups(reader)):
                await self._train(groups)
            await self._publishing.free()
            await self._checkpointing.free()
            if self._step >= self.config.run.steps:
                await self._finish()
            elif self._after_step is not None:
                await self._keep()
        finally:
            reader.cancel()
            beats.cancel()
            await self._publishing.end()
            await self._checkpointing.end()
            await asyncio.to_thread(self._ahead.close)
            if self._outgoing is not None:
                await self._compute.call(self._outgoing.close)
            await self._compute.call(self._ranks.close)

    # -- taking over -------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Load the newest committed checkpoint and fence everybody else."""
        from core.training.ranks import RankGroup
        from core.training.selection import DynamicSampling

        while records := await self.bus.read_steps(self._chain_seq + 1, timeout_s=0.2):
            for seq, record in records:
                self._chain_seq = seq
                self._chain.feed(record)
        checkpoint, collector = await where_to_go_on(self.bus, self.folder.checkpoints, self._chain.step)
        settings = trainer_settings(self.config)
        if not settings.fused_head:
            named = ", ".join(c.name for c in settings.corrected)
            log.info("head = recompute", asked=settings.head, objective=settings.objective, corrections=named)
        self._selection = DynamicSampling(settings, self.config.episodes.gamma)
        self._loaded = await self._compute.call(RankGroup, settings)
        self._incarnation = self._chain.incarnation + 1
        if checkpoint is not None:
            extra = await self._compute.call(self._ranks.load, checkpoint)
            self._collector = self._new_collector(collector)
            log.info("resumed", step=extra.version, checkpoint=checkpoint.name)
        await self._append(self._record("incarnation", ()))
        await tell_other_settings(self.bus, self.config, self._step)

    # -- training ----------------------------------------------------------------------------------------------------

    async def _follow_episodes(self) -> None:
        while True:
            decoding = self.bus.decoding_s
            for seq, ended in await self.bus.read_episodes(self._collector.next_seq):
                self._collector.add(seq, ended.episode, admission=ended.admission, size=ended.size)
                self._arrived.set()
            self._stages.add("time/fetch_s", self.bus.decoding_s - decoding)

    async def _next_groups(self, reader: asyncio.Task[None]) -> list[Group]:
        """Those of the next step; none when asked to stop."""
        wanted, here = f"{self.config.sampler.groups_per_step} complete groups", self._collector
        what = lambda: f"{wanted}; {here.waiting_episodes} episodes wait"  # noqa: E731
        async with stalled.watched(self.bus, what, after_s=self.config.episodes.deadline_s):
            while not self.stopping.is_set():
                for beside in (self._publishing, self._checkpointing):
                    beside.check()
                await self._reject_empty_groups()
                if groups := self._collector.ready():
                    return groups
                await self._wait_for_episodes(reader)
        return []

    async def _wait_for_episodes(self, reader: asyncio.Task[None]) -> None:
        started = self.clock.monotonic()
        self._arrived.clear()
        waits = {asyncio.create_task(self._arrived.wait()), asyncio.create_task(self.stopping.wait())}
        beside = self._publishing.running | self._checkpointing.running
        await asyncio.wait({reader, *waits, *beside}, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if reader.done():
            reader.result()
        self._stages.took("time/wait_s", started)

    async def _reject_empty_groups(self) -> None:
        while outcomes := self._dull_groups(self._collector):
            await self._append(self._record("rejected", tuple(outcomes)))
            self._collector.consume(outcomes)

    def _dull_groups(self, collector: Collector) -> list[GroupOutcome]:
        """Of the groups that have nothing to train on, or nothing to teach."""
        outcomes = [group.outcome() for group in collector.rejects()]
        if self._selection is not None:
            outcomes += self._selection.rejects(collector.complete())
        return outcomes

    def _take_in(self, groups: list[Group], version: int):
        """In the thread of `Ahead`."""
        return intake(self.config, groups, version, self._ranks.prepare)

    async def _train(self, groups: list[Group]) -> None:
        started = self.clock.monotonic()
        before = self._step
        taken = await self._ahead.take(groups, before)
        self._stages.took("time/prepare_exposed_s", started)
        if taken.batch is None:
            await self._append(self._record("rejected", taken.outcomes))
            self._collector.consume(list(taken.outcomes))
            return
        self._stages.add("time/prepare_s", taken.batch.seconds)
        started = self.clock.monotonic()
        following = asyncio.create_task(
            self._ahead.follow(
                self._collector, taken.outcomes, before + 1, dull=self._dull_groups, changed=self._episodes_came
            )
        )
        try:
            metrics = await self._compute.call(self._ranks.step, taken.batch)
        finally:
            following.cancel()
            await asyncio.wait({following})
        if not following.cancelled():
            following.result()
        if not metrics["applied"]:
            await self._refused(groups, metrics)
            return
        metrics |= step_figures(self.config, taken)
        metrics |= {"time/wait_s": 0.0} | self._stages.read() | {"time/learner_s": self.clock.monotonic() - started}
        metrics |= self._use.step(self.clock.now(), metrics)
        await self._append(self._record("step", taken.outcomes, metrics))
        self._collector.consume(list(taken.outcomes))
        self._after_step = self._collector.state()
        log.info("step", step=self._step, reward=metrics.get("reward/mean"), episodes=taken.trained)
        await self._publish_weights()
        if self._step % self.config.checkpoints.every_steps == 0 or self._step == self.config.run.steps:
            await self._write_checkpoint()

    async def _episodes_came(self) -> None:
        await self._arrived.wait()
        self._arrived.clear()

    async def _refused(self, groups: list[Group], metrics: dict[str, float]) -> None:
        """The trainer refused the update (a number that is not finite, say) and changed nothing: the groups are given
        up with its reason, and the run goes on."""
        reason = next((name.partition("/")[2] for name in metrics if name.startswith("refused_step/")), "refused")
        outcomes = tuple(group.outcome(dict.fromkeys(group.episodes, reason)) for group in groups)
        log.error("update refused", why=reason, groups=len(groups))
        await self._append(self._record("rejected", outcomes))
        self._collector.consume(list(outcomes))

    # -- what leaves the learner -------------------------------------------------------------------------------------

    def _record(self, kind: str, groups: tuple[GroupOutcome, ...], metrics: dict[str, float] | None = None) -> Step:
        return Step(
            run_id=self.bus.run_id,
            kind=kind,
            incarnation=self._incarnation,
            step=self._step,
            version=self._step,
            groups=groups,
            metrics=metrics or {},
            at=self.clock.now(),
        )

    async def _append(self, record: Step) -> None:
        try:
            self._chain_seq = await self.bus.append_step(record, after_seq=self._chain_seq)
        except SequenceConflict:
            standing = await self.bus.read_steps(self._chain_seq + 1)
            if [step for _, step in standing] != [record]:  # else our own append, whose answer was lost
                raise Fenced(f"{self.name}: another learner has taken over run {self.bus.run_id}") from None
            self._chain_seq = standing[0][0]
        self._chain.feed(record)

    async def _publish_weights(self) -> None:
        """Take the weights now and hand them over beside what follows."""
        started = self.clock.monotonic()
        if self.config.weights.transport != "filesystem" and self._outgoing is None:
            self._outgoing = await self._compute.call(outgoing, self.config, self._ranks.trainer)
        await self._publishing.free()
        taken = await self._compute.call(self._ranks.take_weights)
        self._stages.took("time/publish_exposed_s", started)
        self._publishing.start(self._hand_over(taken, started))

    async def _hand_over(self, taken, started: float) -> None:
        root = run_root(self.config.weights.folder, self.config.run.name, self.folder.weights)
        folder = incarnation_folder(root, self._incarnation)
        manifest = await asyncio.to_thread(taken.publish, folder, self.config.weights.keep)
        source = manifest.source
        if source.startswith("adapter:"):
            source = await self._adapter_blobs.put(source, f"i{self._incarnation}-v{taken.version}")
        await self.bus.put_policy(
            Policy(
                run_id=self.bus.run_id,
                version=taken.version,
                step=taken.version,
                folder=str(version_folder(folder, taken.version)),
                fingerprint=manifest.fingerprint,
                source=source,
                incarnation=self._incarnation,
                config_hash=self.config.identity_hash(),
            )
        )
        if not self._retired:
            self._retired = True
            await asyncio.to_thread(retire, root, self._incarnation)
        seconds = self._stages.took("time/publish_s", started)
        await self.bus.fact(
            facts.WEIGHTS_PUBLISHED,
            version=taken.version,
            seconds=seconds,
            bytes=manifest.bytes,
            fingerprint=manifest.fingerprint,
            incarnation=self._incarnation,
        )

    async def _write_checkpoint(self) -> None:
        """Take the latest step, with the collector as it was right after it, and write it beside what follows."""
        started = self.clock.monotonic()
        await self._checkpointing.free()
        state, self._after_step = self._after_step, None
        assert state is not None
        taken = await self._compute.call(
            self._ranks.take_checkpoint,
            log_position=state.position,
            consumed=state.consumed,
            incarnation=self._incarnation,
            notes={"collector": msgspec.json.encode(msgspec.structs.replace(state, consumed=b"")).decode()},
        )
        self._stages.took("time/checkpoint_exposed_s", started)
        self._checkpointing.start(self._write(taken, started))

    async def _write(self, taken, started: float) -> None:
        path = await asyncio.to_thread(taken.write, self.folder.checkpoints)
        await self._not_fenced()
        await self.bus.fact(
            facts.CHECKPOINT_WRITTEN,
            step=taken.version,
            folder=str(path),
            position=taken.extra.log_position,
            seconds=self._stages.took("time/checkpoint_s", started),
        )

    async def _not_fenced(self) -> None:
        """A checkpoint that was written while another learner took over holds steps that are void: nobody may hear of
        it. Raises Fenced."""
        standing = await self.bus.read_steps(self._chain_seq + 1, timeout_s=0.2)
        if any(step.incarnation > self._incarnation for _, step in standing):
            raise Fenced(f"{self.name}: another learner has taken over run {self.bus.run_id}")

    async def _keep(self) -> None:
        """An orderly stop costs no step that was trained, where there is somebody to commit them."""
        try:
            async with asyncio.timeout(self.grace_s / 2):
                await self._write_checkpoint()
                await self._checkpointing.free()
                await self._committed()
        except (TimeoutError, Fenced) as error:
            log.warning("stopped without a checkpoint of the latest steps", step=self._step, why=str(error))
            await stalled.tell_what_ended(self.bus, error)

    async def _committed(self) -> None:
        deadline = self.clock.monotonic() + COMMIT_TIMEOUT_S
        while not await asyncio.to_thread(store.step_folder(self.folder.checkpoints, self._step).is_dir):
            if self.clock.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.name} waited {COMMIT_TIMEOUT_S:.0f} s for the checkpointer to commit step {self._step}"
                )
            await asyncio.sleep(0.2)

    async def _finish(self) -> None:
        """The last checkpoint must stand before the run is called finished."""
        await self._committed()
        if not self._chain.finished:
            await self._append(self._record("finished", ()))
        await self.bus.fact(facts.FINISHED, step=self._step, version=self._step)
        log.info("finished", step=self._step)

    def gauges(self) -> dict[str, float]:
        return {
            "step": float(self._step),
            "waiting_episodes": float(self._collector.waiting_episodes),
            "batches_made_again": float(self._ahead.guessed_wrong),
            "duplicate_episodes": float(self._collector.duplicates),
            "disk_free_gb": shutil.disk_usage(self.folder.root).free / 1e9,
            **self._use.latest,
        }
