"""The base of every actor: its life from joining to leaving.

    connect -> same config as the run? -> join -> { run | beat | watch the loop's lag } -> leave -> close

A process runs one actor and nothing else. An exception that nobody expected ends the process with a non-zero exit code;
restarting is the supervisor's work. SIGTERM (or Ctrl-C) asks the actor to stop: it takes no more work, finishes what it
has within `grace_s`, hands the rest back and leaves; a second one ends it at once. A run that has finished asks
it too, in the order of `actors.run_end`.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from typing import ClassVar

import psutil
import structlog

from actors.agreement import agree_on_config, keep_config
from actors.only_one import AnotherOne, wait_until_alone
from actors.run_end import run_has_ended
from actors.stalled import tell_what_ended
from bus import facts
from bus.messages import Beat, Held
from bus.run_bus import RunBus, host, pid
from configs.schema import RunConfig
from core.clock import Clock
from core.run_folder import RunFolder

log = structlog.get_logger()
LAG_PROBE_S = 0.25


class Actor:
    """One actor. Subclasses implement `run` and say in their module docstring what they consume, produce, wait for
    and are unblocked by."""

    kind: ClassVar[str]
    only_one: ClassVar[bool] = False
    """A run has one of this kind; a second one leaves again (`actors.only_one`)."""
    grace_s: ClassVar[float] = 20.0

    def __init__(self, config: RunConfig, bus: RunBus, name: str, folder: RunFolder, clock: Clock) -> None:
        self.config = config
        self.bus = bus
        self.name = name
        self.folder = folder
        self.clock = clock
        self.stopping = asyncio.Event()
        self.beat_now = asyncio.Event()
        self._lag_s = 0.0
        self._life = secrets.token_hex(6)
        self._leaving = False
        self._at_work = False
        self._asked = False
        self._joined = False

    async def run(self) -> None:
        """The actor's work; returns when it is done or `stopping` is set and work in hand is finished."""
        raise NotImplementedError

    async def hand_back(self) -> None:
        """Give unfinished work back to the bus; called when the grace is over."""

    def held(self) -> tuple[Held, ...]:
        """Deliveries in hand, for the reaper."""
        return ()

    def policy_held(self) -> tuple[int, str]:
        """(version, fingerprint) of the policy that this actor samples with; (-1, "") for all but generators."""
        return -1, ""

    def gauges(self) -> dict[str, float]:
        """Readings for the beat; names are listed in docs/metrics.md."""
        return {}

    # -- the life of an actor ----------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Join, work, leave. Raises what `run` raises."""
        await agree_on_config(self.bus, self.config)
        keep_config(self.folder, self.config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: the runner forwards signals
                loop.add_signal_handler(number, self.ask_to_stop)
        await self._beat()
        if not self.only_one:
            await self._join()
        background = [asyncio.create_task(self._beats()), asyncio.create_task(self._watch_lag())]
        if self.kind != "learner":  # which finishes the run
            background.append(asyncio.create_task(self._end_with_the_run()))
        work = asyncio.create_task(self._work())
        try:
            await self._until_done(work, background)
            await self._leave()
        except AnotherOne:
            with contextlib.suppress(TimeoutError):  # then the beat expires, and a death is told
                await self._leave()
            raise
        except Exception as error:
            await tell_what_ended(self.bus, error)
            raise
        finally:
            for task in (work, *background):
                task.cancel()
            await asyncio.gather(work, *background, return_exceptions=True)

    async def _join(self) -> None:
        """Said when it is about to work: one that finds another one at work was never here."""
        await self.bus.fact(facts.JOINED, kind=self.kind, pid=pid(), host=host())
        log.info("joined")
        self._joined = True

    def ask_to_stop(self) -> None:
        """First call: finish and leave. Second call: now."""
        if self._asked:
            log.warning("asked twice to stop: ending now")
            os._exit(143)
        self._asked = True
        self.stopping.set()

    async def _work(self) -> None:
        if self.only_one:
            if not await wait_until_alone(self.bus, self.kind, self.stopping, self.config.bus.beat_s):
                return
            self._at_work = True
            self.beat_now.set()
            await self._join()
        await self.run()

    async def _end_with_the_run(self) -> None:
        steps, every_s = self.config.run.steps, self.config.bus.beat_s
        await run_has_ended(self.bus, self.kind, steps=steps, look_every_s=every_s, clock=self.clock)
        self.stopping.set()

    async def _until_done(self, work: asyncio.Task[None], background: list[asyncio.Task[None]]) -> None:
        stop = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({work, stop, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, *background):
                if task.done():
                    task.result()
            if not work.done():
                await asyncio.wait({work}, timeout=self.grace_s)
                if work.done():
                    work.result()
                else:
                    log.warning("grace is over: handing the rest back", grace_s=self.grace_s)
                    await self.hand_back()
        finally:
            stop.cancel()

    async def _leave(self) -> None:
        """The last beat says so: with the key deleted instead, a watcher that was late would see a death."""
        self._leaving = True
        await self._beat()
        if not self._joined:
            return
        await self.bus.fact(facts.LEFT, kind=self.kind, pid=pid(), host=host())
        log.info("left")

    async def _beats(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.beat_now.wait(), self.config.bus.beat_s)
            self.beat_now.clear()
            try:
                await self._beat()
            except TimeoutError as error:  # an outage is no reason to end: the next beat tells
                log.warning("beat not stored", why=str(error))

    async def _beat(self) -> None:
        version, fingerprint = self.policy_held()
        process = psutil.Process()
        gauges = {
            "loop_lag_ms": 1e3 * self._lag_s,
            "rss_mb": process.memory_info().rss / 1e6,
            "cpu_s": sum(process.cpu_times()[:2]),
            "refused_messages": float(self.bus.refused),
            **self.gauges(),
        }
        if self.only_one:
            gauges["at_work"] = float(self._at_work)
        if self._leaving:
            gauges["leaving"] = 1.0
        await self.bus.beat(
            Beat(
                run_id=self.bus.run_id,
                kind=self.kind,
                actor=self.name,
                pid=pid(),
                host=host(),
                life=self._life,
                at=self.clock.now(),
                version=version,
                fingerprint=fingerprint,
                held=() if self._leaving else self.held(),
                gauges=gauges,
            )
        )
        self._lag_s = 0.0

    async def _watch_lag(self) -> None:
        """The longest time that the loop was busy with something else since the last beat."""
        while True:
            before = self.clock.monotonic()
            await asyncio.sleep(LAG_PROBE_S)
            self._lag_s = max(self._lag_s, self.clock.monotonic() - before - LAG_PROBE_S)
