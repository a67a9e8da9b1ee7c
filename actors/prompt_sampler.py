"""The prompt sampler: decides what is attempted next, and hands on the work of actors that died.

    consumes     STEPS (credits come back), actors bucket (which policy the generators hold; deaths), DEAD (work that
                 nobody gets any more: its groups are closed)
    produces     REQUESTS, facts `admitted`, `left_out`, `left_out_rows`, `died`, `poisoned`; KV cursor; with
                 `evaluation.every_steps` held-out requests as well, which are no admissions and take no credits
                 (`actors.heldout_sender`)
    waits for    credits
    unblocked by a step, a generator's beat with a newer version, a rejected group

Admission order: request, fact, cursor. A crash between any two is healed by doing the same again: group ids are made
from content, so a request that stands or was played is seen as what it is.

Draws go through the tasks epoch by epoch; a draw that falls on a degenerate task is passed over, so there are at least
as many draws as admissions, and the cursor holds both.
"""

import asyncio
import random
from typing import ClassVar

import structlog

from actors.actor import Actor
from actors.given_up import bury_group, bury_unread_group, infra_verdict, unread_verdict
from actors.heldout_sender import HeldOutSender
from actors.sound_tasks import SoundTasks
from actors.stalled import tell
from bus import codec, facts, subjects
from bus.broker import SequenceConflict
from bus.dead_letters import DeadLetters
from bus.messages import Cursor, Evaluation, Request
from bus.reaper import Reaper, leaving
from core.evaluation.audit.auditor import Auditor
from core.flow.admission import admissible
from core.flow.chain import Chain
from core.identity import digest, group_id
from core.tasks.loading import FIRST_REASONS
from core.tasks.task import Task

log = structlog.get_logger()
SLOW_S = 10.0
"""An audit that takes longer is told: nothing is admitted meanwhile."""


class GoingNowhere(RuntimeError):
    """Nothing that is admitted can be trained on."""


def task_at(tasks: list[Task], draw: int, *, seed: int, shuffled: bool) -> tuple[int, Task]:
    """(epoch, task) of a draw: every epoch visits every task once, in an order of its own."""
    epoch, position = divmod(draw, len(tasks))
    if not shuffled:
        return epoch, tasks[position]
    order = list(range(len(tasks)))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return epoch, tasks[order[position]]


class PromptSampler(Actor):
    kind: ClassVar[str] = "sampler"
    only_one = True

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        tasks = self.config.tasks
        auditor = None
        if tasks.degenerate == "refuse":
            auditor = Auditor(self.folder.audits, profile=self.config.judge.profile)
        sources = [source.model_dump() for source in tasks.train]
        self._sound = SoundTasks(sources, tasks.backend, auditor, skip=tasks.refused == "skip")
        self._tasks = self._sound.all
        self._chain = Chain()
        self._next_step_seq = 1
        self._reaper = Reaper(self.bus, max_deaths=self.config.bus.max_worker_deaths, on_poison=self._give_up)
        self._dead_letters = DeadLetters(self.bus, self._reaper, self._unreadable)
        self._changed = asyncio.Event()
        self._admitted = 0
        self._draw = 0
        self._version_seen_at: dict[int, float] = {}
        self._late_for = -1
        self._heldout: HeldOutSender | None = None
        if self.config.evaluation.every_steps:
            self._heldout = HeldOutSender(
                self.config, self.bus, self.clock, chain=self._chain, held_version=self._held_version
            )

    async def run(self) -> None:
        if refused := self._sound.refused:
            first = [one.reason for one in refused[:FIRST_REASONS]]
            await self.bus.fact(facts.LEFT_OUT_ROWS, count=len(refused), first=first)
        try:
            async with asyncio.TaskGroup() as tasks:
                watches = (
                    self._follow_steps(),
                    self._follow_actors(),
                    self._reaper.sweep(self.config.bus.dead_after_s),
                    self._dead_letters.follow(),
                )
                watchers = [tasks.create_task(watch) for watch in watches]
                if self._heldout is not None:
                    watchers.append(tasks.create_task(self._heldout.run()))
                await self._admit_until_finished()
                for watcher in watchers:
                    watcher.cancel()
        finally:
            self._sound.stop()

    async def _admit_until_finished(self) -> None:
        cursor, revision = await self.bus.cursor()
        self._admitted = cursor.admissions if cursor else 0
        self._draw = cursor.epoch * len(self._tasks) + cursor.position if cursor else 0
        while not self.stopping.is_set():
            self._changed.clear()
            self._refuse_to_go_nowhere()
            await self._tell_late_generators()
            for _ in range(self._admissible()):
                drawn = await self._next_sound()
                if drawn is None:
                    return
                await self._admit(self._admitted, *drawn)
                revision = await self._move_cursor(self._admitted + 1, self._draw + 1, revision)
                self._admitted += 1
                self._draw += 1
            waits = [asyncio.create_task(self._changed.wait()), asyncio.create_task(self.stopping.wait())]
            await asyncio.wait(waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    def _refuse_to_go_nowhere(self) -> None:
        """Rejected groups are replaced; when nothing but rejections comes back, more of the same only burns time."""
        count, reason = self._chain.rejected_in_a_row()
        if count >= self.config.sampler.give_up_after_rejected:
            raise GoingNowhere(
                f"the last {count} groups were rejected whole (latest reason: {reason}), so no step can be made; look "
                f"at the generator's and the evaluator's logs, and at `kernelmill tail` for the facts"
            )

    def _admissible(self) -> int:
        return admissible(
            admitted=self._admitted,
            chain=self._chain,
            held_version=self._held_version(),
            max_staleness=self.config.sampler.max_staleness,
            groups_per_step=self.config.sampler.groups_per_step,
            total_steps=self.config.run.steps,
        )

    def _held_version(self) -> int:
        """The oldest policy that a live generator samples with; the newest one when a generator that should have
        answered in `apply_timeout_s` has not (then staleness, not liveness, is what the learner's checks bound)."""
        newest = self._chain.version
        seen = self._version_seen_at.setdefault(newest, self.clock.monotonic())
        if self.clock.monotonic() - seen > self.config.weights.apply_timeout_s:
            return newest
        held = [beat.version for beat in self._reaper.beats.values() if beat.kind == "generator" and beat.version >= 0]
        return min(held, default=newest)

    async def _tell_late_generators(self) -> None:
        """Once per version: credits no longer wait for who should hold it by now."""
        newest, patience_s = self._chain.version, self.config.weights.apply_timeout_s
        since = self._version_seen_at.setdefault(newest, self.clock.monotonic())
        if newest == self._late_for or self.clock.monotonic() - since <= patience_s:
            return
        beats = [beat for beat in self._reaper.beats.values() if beat.kind == "generator" and beat.version >= 0]
        late = [f"{beat.actor} (at {beat.version})" for beat in beats if beat.version < newest and not leaving(beat)]
        if late:
            self._late_for = newest
            await tell(
                self.bus, f"{self.name} waited {patience_s:g} s for version {newest} at {', '.join(sorted(late))}"
            )

    async def _next_sound(self) -> tuple[int, Task] | None:
        """(epoch, task) of the next draw that falls on a task which may be trained on; None when asked to stop."""
        shuffled = self.config.sampler.order == "shuffled"
        for _ in range(2 * len(self._tasks)):  # one whole epoch is among them
            epoch, task = task_at(self._tasks, self._draw, seed=self.config.run.seed, shuffled=shuffled)
            known = len(self._sound.left_out)
            judging = asyncio.create_task(self._sound.usable(task))
            stop = asyncio.create_task(self.stopping.wait())
            if not (await asyncio.wait({judging, stop}, timeout=SLOW_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                log.warning("waiting for a task's own code", why=f"{task.task_id}: its inputs and Model are audited")
                await asyncio.wait({judging, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not judging.done():
                judging.cancel()
                return None
            if judging.result():
                return epoch, task
            if len(self._sound.left_out) > known:
                await self.bus.fact(facts.LEFT_OUT, task_id=task.task_id, why=self._sound.left_out[task.task_id])
            self._draw += 1
        raise GoingNowhere(
            f"all {len(self._tasks)} training tasks would pay for computing nothing, so there is nothing to train on; "
            "see `kernelmill audit` for why, and choose other tasks, or set tasks.degenerate = 'keep'"
        )

    async def _admit(self, admission: int, epoch: int, task: Task) -> None:
        config = self.config
        group = group_id(self.bus.run_id, task.task_id, "generator", epoch, admission)
        request = Request(
            run_id=self.bus.run_id,
            trace=group,
            group_id=group,
            admission=admission,
            task=task,
            size=config.sampler.group_size,
            max_turns=config.episodes.max_turns,
            seed=int(digest(str(config.run.seed), group, size=4), 16),
            admitted_at=self.clock.now(),
        )
        if self._chain.outcome(group) is None:
            await self.bus.publish_request(request)
        await self.bus.fact(
            facts.ADMITTED,
            trace=group,
            group_id=group,
            admission=admission,
            size=request.size,
            task_id=task.task_id,
            level=task.level,
            role=request.role,
        )

    async def _move_cursor(self, admissions: int, draws: int, revision: int) -> int:
        epoch, position = divmod(draws, len(self._tasks))
        cursor = Cursor(
            run_id=self.bus.run_id,
            admissions=admissions,
            epoch=epoch,
            position=position,
            config_hash=self.config.identity_hash(),
        )
        try:
            return await self.bus.put_cursor(cursor, revision)
        except SequenceConflict:
            standing, revision = await self.bus.cursor()
            if standing == cursor:  # our own write, whose answer was lost
                return revision
            raise RuntimeError("another prompt sampler is admitting for this run; one of the two must go") from None

    async def _follow_steps(self) -> None:
        while True:
            for seq, step in await self.bus.read_steps(self._next_step_seq):
                self._next_step_seq = seq + 1
                self._chain.feed(step)
                self._changed.set()

    async def _follow_actors(self) -> None:
        async for actor, beat in self.bus.watch_actors():
            await self._reaper.see(actor, beat)
            self._changed.set()

    async def _give_up(self, stream: str, subject: str, payload: bytes, why: str) -> None:
        """The terminal trace of poisoned work: tombstones for what is missing of a group, an infra verdict."""
        try:
            if stream == self.bus.names.requests:
                await bury_group(self.bus, codec.decode(payload, Request), "poison", why)
            else:
                await self.bus.publish_judged(infra_verdict(codec.decode(payload, Evaluation), why, self.name))
        except codec.Refused:
            await self._unreadable(stream, subject, why)

    async def _unreadable(self, stream: str, subject: str, why: str) -> None:
        """The same for work of which only the subject can be read."""
        key = subjects.last_part(subject)
        if stream == self.bus.names.requests:
            if self._chain.outcome(key) is None:
                await bury_unread_group(self.bus, key, "poison", why)
        elif await self.bus.standing_verdict(key) is None:
            await self.bus.publish_judged(unread_verdict(self.bus.run_id, key, why, self.name))

    def gauges(self) -> dict[str, float]:
        return {
            "admitted_groups": float(self._admitted),
            "open_groups": float(self._admitted - self._chain.consumed),
            "left_out_tasks": float(len(self._sound.left_out)),
            "held_version": float(self._held_version()),
            "heldout_groups": float(self._heldout.rounds.waiting if self._heldout is not None else 0),
        }
