"""One run in the foreground: supervised, watched and drawn until it ends or somebody asks."""

import asyncio
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from bus.broker import Unreachable
from bus.run_bus import RunBus
from core.run_folder import RunFolder
from runners import interrupts
from runners.actor_process import connect, reach_bus
from runners.cli import first_cause
from runners.live import View
from runners.local import LocalRun
from runners.logs import told_to
from runners.standing import chain_of, standing
from runners.troubles import Troubles
from runners.watching import Watching

STOPPING = "stopping, Ctrl-C again ends it at once"


async def supervise(config: Any, note: str) -> int:
    """0 when the run finished, 1 when it was given up, 130 when it was interrupted."""
    interrupted = asyncio.Event()
    view = View()
    loop = asyncio.get_running_loop()

    def feed(event: Mapping[str, Any]) -> None:
        view.feed(event, time.time())

    def stop() -> None:
        feed({"type": "note", "text": STOPPING})
        interrupted.set()

    def stop_soon() -> None:
        loop.call_soon_threadsafe(stop)

    trouble = Troubles(feed).take
    # Signals are the process's, not the loop's: one that is busy would let the second Ctrl-C wait.
    signals = interrupts.stop_or_end("up", stop_soon)
    with view, told_to(partial(trouble, "supervisor")), signals:

        def on_line(actor: str, event: dict[str, Any]) -> None:
            if event.get("event") == "died" or str(event.get("event", "")).startswith("died ("):
                feed({"type": "actor", "actor": actor, "state": "restarting", "restarts": restarts(actor)})
            trouble(actor, event)

        run = LocalRun(config, on_line=on_line)

        def restarts(actor: str) -> int:
            return next((child.restarts for child in run.children if child.name == actor), 0)

        run.prepare()
        feed(
            {
                "type": "run",
                "name": config.run.name,
                "steps": config.run.steps,
                "folder": str(run.folder.root),
                "started_at": time.time(),
                "max_staleness": config.sampler.max_staleness,
                "dead_after_s": config.bus.dead_after_s,
                "supervised": run.names(),
            }
        )
        feed({"type": "note", "text": note or f"starting; logs, record and report are in {run.folder.root}"})
        background: list[asyncio.Task[Any]] = []
        try:
            await run.start()
            background = [asyncio.create_task(_watch(config, run, feed)), asyncio.create_task(_redraw(view))]
            ends = [asyncio.create_task(run.wait()), asyncio.create_task(interrupted.wait())]
            await asyncio.wait([*ends, background[0]], return_when=asyncio.FIRST_COMPLETED)
            for task in (*ends, background[0]):
                if task.done():
                    task.result()
                elif task is not background[0]:
                    task.cancel()
            if line := ending(run, interrupted.is_set()):
                feed({"type": "note", "text": line})
        except Exception as error:
            cause = first_cause(error)
            feed({"type": "note", "text": f"stopping: {cause or type(cause).__name__}"})
            raise
        finally:
            for task in background[:1]:
                task.cancel()
            await asyncio.gather(*background[:1], return_exceptions=True)
            try:
                await run.stop()  # which may take minutes: the view goes on
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
            view.refresh(time.time())
    if run.failed:
        print(f"kernelmill up: {run.failed}", file=sys.stderr)
        return 1
    if interrupted.is_set():
        print(stopped(run.folder, config.run.steps))
        return 130
    return 0


def ending(run: LocalRun, interrupted: bool) -> str:
    """What is said while the actors are stopped, which may take minutes; nothing where the Ctrl-C has said so."""
    if run.failed:
        return f"stopping: {run.failed}"
    return "" if interrupted else "finished; writing everything down"


def stopped(folder: RunFolder, steps: int) -> str:
    """The last line of a run that was asked to stop; its learner may have made a step meanwhile, even the last one."""
    ledger = chain_of(folder.root, steps)
    if ledger is not None and ledger.finished:
        return f"stopped; the run has finished, at step {ledger.step}"
    again = f"`kernelmill up` with the same arguments, or with {folder.config}, goes on from here"
    return f"{standing(ledger, False) if ledger is not None else 'stopped'}: {again}"


async def _watch(config: Any, run: Any, feed: Any) -> None:
    url, token = reach_bus(config, run.folder)
    try:
        bus: RunBus = await connect(config, "up", url, token)
    except Unreachable as error:
        if config.bus.url:
            raise
        log = run.folder.nats / "nats-server.log"
        raise Unreachable(f"the run's own broker does not answer (its log is {log}): {error}") from None
    try:
        await Watching(bus, config, lambda event, _: feed(event)).run()
    finally:
        await bus.close()


async def _redraw(view: Any) -> None:
    while True:
        view.refresh(time.time())
        await asyncio.sleep(0.25)
