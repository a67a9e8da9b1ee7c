"""The recorder: keeps what happened, outside of the broker.

    consumes     FACTS, STEPS, EPISODES by position, beats of all actors
    produces     the run folder's record (facts, steps, episodes, metrics), trackers (wandb), trims EPISODES
    waits for    messages
    unblocked by any

Every log is read from the position that the record itself remembers, so a restart neither misses nor doubles. EPISODES
is trimmed only below the smaller of: what is archived, and what the oldest checkpoint that may be resumed still needs.
"""

import asyncio
from typing import ClassVar

import structlog

from actors.actor import Actor
from actors.stalled import tell
from bus import facts
from bus.messages import Beat
from core.episodes.heldout_figures import tracked
from core.record.record import EPISODES, FACTS, METRICS_EVERY_S, STEPS, Record
from core.record.trackers import Tracker, open_trackers

log = structlog.get_logger()
CATCH_UP_S = 10.0


class Recorder(Actor):
    kind: ClassVar[str] = "recorder"
    only_one = True

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._opened: Record | None = None
        self._writing = asyncio.Lock()
        self._trackers: list[Tracker] = []
        self._last_beats: dict[str, Beat] = {}
        self._trimmed_below = 1
        self._last_metrics: dict[str, float] = {}

    async def run(self) -> None:
        with await asyncio.to_thread(Record, self.folder.root) as self._opened:
            await self._keep()

    @property
    def _record(self) -> Record:
        assert self._opened is not None, "a recorder writes once it has its record"
        return self._opened

    async def _keep(self) -> None:
        # In a thread: wandb takes seconds to import and begin, and more while all the others start beside it.
        self._trackers = await asyncio.to_thread(
            open_trackers,
            self.folder.root,
            run_id=self.bus.run_id,
            name=self.config.run.name,
            project=self.config.recorder.project,
            wandb=self.config.recorder.wandb,
            config=self.config.model_dump(mode="json"),
        )
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(self._follow_beats())
            rows = tasks.create_task(self._write_metrics())
            logs = [
                tasks.create_task(self._follow_facts()),
                tasks.create_task(self._follow_steps()),
                tasks.create_task(self._follow_episodes()),
            ]
            await asyncio.gather(*logs)
            beats.cancel()
            rows.cancel()
        for tracker in self._trackers:
            await asyncio.to_thread(tracker.finish, self._last_metrics)

    async def _follow_facts(self) -> None:
        async for batch in self._batches(FACTS, self.bus.read_facts):
            await self._write(self._record.append_facts, batch)
            for _, fact in batch:
                if fact.kind == facts.CHECKPOINT_COMMITTED:
                    await self._trim(int(fact.data["oldest_position"]))
                elif fact.kind == facts.EVALUATED:
                    for tracker in self._trackers:
                        await asyncio.to_thread(tracker.log, fact.data["version"], tracked(fact.data), fact.at)

    async def _follow_steps(self) -> None:
        async for batch in self._batches(STEPS, self.bus.read_steps):
            await self._what_steps_rest_on()
            await self._write(self._record.append_steps, batch)
            for _, step in batch:
                if step.kind == "step":
                    for tracker in self._trackers:
                        await asyncio.to_thread(tracker.log, step.step, step.metrics, step.at)
                    self._last_metrics = step.metrics

    async def _follow_episodes(self) -> None:
        async for batch in self._batches(EPISODES, self.bus.read_episodes):
            await self._write(self._record.append_episodes, batch)

    async def _what_steps_rest_on(self) -> None:
        """Returns when the facts and episodes that stand now are in the record, so that whoever reads it while the run
        goes on meets no step whose groups were never admitted or never ended."""
        wanted = {
            FACTS: (await self.bus.broker.stream_state(self.bus.names.facts)).last_seq,
            EPISODES: (await self.bus.broker.stream_state(self.bus.names.episodes)).last_seq,
        }
        deadline = self.clock.monotonic() + CATCH_UP_S
        while any(self._record.position(stream) < seq for stream, seq in wanted.items()):
            if self.clock.monotonic() > deadline:  # a message that can't be read is never in the record
                await tell(self.bus, f"{self.name} waited {CATCH_UP_S:g} s for what steps rest on: {wanted}")
                return
            await asyncio.sleep(0.05)

    async def _batches(self, stream: str, read):
        """Batches of (seq, message) from where the record stands; ends when asked to stop and nothing is left."""
        next_seq = self._record.position(stream) + 1
        while True:
            batch = await read(next_seq)
            if batch:
                yield batch
                next_seq = batch[-1][0] + 1
            elif self.stopping.is_set():
                return

    async def _write(self, append, batch) -> None:
        """One writer at a time, off the loop: every batch is synced to the disk."""
        async with self._writing:
            await asyncio.to_thread(append, [message for _, message in batch], batch[-1][0])

    async def _trim(self, needed_from: int) -> None:
        below = min(needed_from, self._record.position(EPISODES) + 1)
        if below > self._trimmed_below:
            await self.bus.trim_episodes(below)
            self._trimmed_below = below

    async def _follow_beats(self) -> None:
        async for actor, beat in self.bus.watch_actors():
            if beat is None:
                self._last_beats.pop(actor, None)
            else:
                self._last_beats[actor] = beat

    async def _write_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            rows = [{"at": b.at, "actor": b.actor, "version": b.version, **b.gauges} for b in self._last_beats.values()]
            if rows:
                async with self._writing:
                    await asyncio.to_thread(self._record.append_metrics, rows)

    def gauges(self) -> dict[str, float]:
        return {"archived_episodes": float(self._opened.position(EPISODES) if self._opened else 0)}
