"""The stages of the learner that run beside its steps: the next batch on its way in, policies and checkpoints on their
way out. And the account of their times: what each took, and what of it training waited for.

    step t     |========================|                      the trainer's thread
    batch t+1     |prepare|  (again, when other groups come first after all)
    step t+1                            |take|======================|
    publish t                                |------|
    checkpoint t                             |-----------|
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bus.run_bus import RunBus
from core.clock import Clock
from core.flow.chain import GroupOutcome
from core.flow.collector import Collector, Group
from core.flow.stages import StageUse


class StageTimes:
    """Seconds by stage since they were last read, for the metrics of the next step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}

    def add(self, stage: str, seconds: float) -> float:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
        return seconds

    def took(self, stage: str, started: float) -> float:
        """Account for what began at `started` (of the clock's monotonic time) and ends now; returns the seconds."""
        return self.add(stage, self._clock.monotonic() - started)

    def read(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, {}
        return seconds


async def follow_beats(bus: RunBus, use: StageUse) -> None:
    """Tell `use` what every actor says of itself, until cancelled."""
    async for actor, beat in bus.watch_actors():
        if beat is not None:
            use.see(actor, beat.at, beat.gauges, beat.kind, (beat.pid, beat.host))


class Beside:
    """Work beside training, one piece at a time. What goes wrong in it is raised by the next call but `end`."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Only after `free`."""
        assert self._task is None
        self._task = asyncio.create_task(work)

    @property
    def running(self) -> set[asyncio.Task[None]]:
        """For who waits for something else meanwhile."""
        return {self._task} if self._task is not None and not self._task.done() else set()

    def check(self) -> None:
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def free(self) -> None:
        """Wait for the piece under way."""
        if self._task is not None:
            await asyncio.wait({self._task})
        self.check()

    async def end(self) -> None:
        """The same, for who has an error of its own already: raises nothing."""
        if self._task is not None:
            await asyncio.wait({self._task})


Make = Callable[[list[Group], int], Any]


class Ahead:
    """The next batch, made by one thread while a step runs. A batch made for other groups, or another version, than the
    step turns out to have is thrown away and made anew: what is trained never depends on what was guessed."""

    def __init__(self, make: Make) -> None:
        """make(groups, version): in the thread."""
        self._make = make
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._job: asyncio.Future[Any] | None = None
        self._of: tuple[int, tuple[str, ...]] | None = None
        self.guessed_wrong = 0

    def start(self, groups: list[Group], version: int) -> None:
        """Make the batch of these groups, unless it is the one that is being made."""
        wanted = (version, tuple(group.group_id for group in groups))
        if wanted != self._of:
            self.guessed_wrong += self._of is not None
            self._of = wanted
            self._job = asyncio.get_running_loop().run_in_executor(self._pool, self._make, groups, version)

    async def take(self, groups: list[Group], version: int) -> Any:
        """The batch of these groups for the policy of `version`."""
        self.start(groups, version)
        assert self._job is not None
        job, self._job, self._of = self._job, None, None
        return await job

    async def follow(
        self,
        collector: Collector,
        outcomes: Sequence[GroupOutcome],
        version: int,
        *,
        dull: Callable[[Collector], list[GroupOutcome]],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """Keep making the batch that comes after a step with these `outcomes`, as episodes arrive, until cancelled.
        dull: groups that are given up before they are chosen; changed: returns when episodes have come."""
        while True:
            then = collector.after(outcomes)
            then.consume(dull(then))
            if groups := then.ready():
                self.start(groups, version)
            await changed()

    def close(self) -> None:
        self._pool.shutdown(wait=True)
