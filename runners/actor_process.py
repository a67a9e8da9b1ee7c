"""One actor as a process: reach the bus, agree on the topology, live, leave.

All actors but the learner run their loop in the main thread. The learner's loop has a thread of its own, and torch has
the main thread (`actors.compute`).
"""

import argparse
import asyncio
import contextvars
import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from runners.usage import UsageError

ORPHAN_S = 3.0
"""What an actor may still write down when its supervisor is dead."""


def run_actor(args: argparse.Namespace) -> int:
    """The whole life of this process."""
    from bus.address import check_url
    from configs.cards import numbered_by
    from configs.load import load
    from core.run_folder import RunFolder
    from runners.where import where_it_lies

    config = load(args.config, args.overrides)
    if not args.run_folder:
        config = where_it_lies(Path(args.config), config, args.overrides)
    if not args.name and (setting := numbered_by(config, args.actor)):
        raise UsageError(
            f"{setting} is parted among {args.actor}s by the number at the end of their names, a process id else: "
            f"start each with its own, as in --name {args.actor}-0"
        )
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # judges number cards so
    # Absolute: an actor tells others of folders in it, and who reads that may have been started from elsewhere.
    folder = RunFolder(Path(args.run_folder or Path(config.run.folder) / config.run.name).absolute())
    url, token = reach_bus(config, folder)
    check_url(url)  # now: some actors import torch first
    folder.root.mkdir(parents=True, exist_ok=True)
    name = args.name or f"{args.actor}-{os.uname().nodename}-{os.getpid()}"
    _die_with_parent(its_broker=not config.bus.url)
    from runners.logs import configure

    configure(run=config.run.name, actor=name)
    if args.actor == "learner":
        return _learner_process(config, folder, name, url, token)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_live(args.actor, config, folder, name, url, token))


def reach_bus(config: Any, folder: Any) -> tuple[str, str]:
    """(url, token): from the run folder under a supervisor, else from the environment or the config."""
    if folder.bus.exists():
        reach = json.loads(folder.bus.read_text())
        return reach["url"], reach["token"]
    url = os.environ.get("NATS_URL") or config.bus.url
    if not url:
        raise UsageError(
            f"no broker is named: set bus.url (or NATS_URL), or start the run with `kernelmill up` "
            f"({folder.bus} is not there)"
        )
    return url, os.environ.get("NATS_TOKEN") or config.bus.token


async def connect(config: Any, name: str, url: str, token: str, folder: Any = None) -> Any:
    """The run's bus; with its `folder`, where episodes that are too large for a message stand."""
    from bus.nats import NatsBroker
    from bus.run_bus import RunBus
    from bus.topology import topology

    broker = await NatsBroker.connect(url, token, name=name, deadline_s=config.bus.connect_s)
    await broker.ensure(
        topology(
            config.run.name,
            device_classes=[(config.tasks.backend, config.judge.device_class)],
            ack_wait_s=config.bus.ack_wait_s,
            dead_after_s=config.bus.dead_after_s,
            max_worker_deaths=config.bus.max_worker_deaths,
        )
    )
    return RunBus(broker, config.run.name, name, episodes=folder.episodes if folder is not None else None)


async def _live(kind: str, config: Any, folder: Any, name: str, url: str, token: str) -> int:
    from core.clock import SystemClock

    bus = await connect(config, name, url, token, folder)
    try:
        await actor_class(kind)(config, bus, name, folder, SystemClock()).live()
    finally:
        await bus.close()
    return 0


def actor_class(kind: str) -> Any:
    """Imported only here, so that each process loads what its own actor needs."""
    if kind == "sampler":
        from actors.prompt_sampler import PromptSampler as Chosen
    elif kind == "generator":
        from actors.rollout_generator import RolloutGenerator as Chosen  # type: ignore[assignment]
    elif kind == "evaluator":
        from actors.evaluator import Evaluator as Chosen  # type: ignore[assignment]
    elif kind == "learner":
        from actors.learner import Learner as Chosen  # type: ignore[assignment]
    elif kind == "checkpointer":
        from actors.checkpointer import Checkpointer as Chosen  # type: ignore[assignment]
    elif kind == "gateway":
        from actors.gateway import Gateway as Chosen  # type: ignore[assignment]
    else:
        from actors.recorder import Recorder as Chosen  # type: ignore[assignment]
    return Chosen


def _learner_process(config: Any, folder: Any, name: str, url: str, token: str) -> int:
    """Torch in this (the main) thread, the bus loop in another."""
    import core.training.ranks  # noqa: F401  now: a loop that runs beside the import of torch misses its beats
    from actors.compute import MainThreadCalls

    compute = MainThreadCalls()
    outcome: list[BaseException] = []
    loop = loop_factory()()
    actors: list[Any] = []

    def bus_thread() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(_learner_life(config, folder, name, url, token, compute, actors))
        except BaseException as error:
            outcome.append(error)
        finally:
            compute.close()

    def stop(*_: object) -> None:
        if actors:
            loop.call_soon_threadsafe(actors[0].ask_to_stop)
        else:
            os._exit(143)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    thread = threading.Thread(target=contextvars.copy_context().run, args=(bus_thread,), name="bus")
    thread.start()
    compute.serve()
    thread.join()
    if outcome:
        raise outcome[0]
    return 0


async def _learner_life(
    config: Any, folder: Any, name: str, url: str, token: str, compute: Any, actors: list[Any]
) -> None:
    from actors.learner import Learner
    from core.clock import SystemClock

    bus = await connect(config, name, url, token, folder)
    try:
        actors.append(Learner(config, bus, name, folder, SystemClock(), compute=compute))
        await actors[0].live()
    finally:
        await bus.close()


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _die_with_parent(its_broker: bool) -> None:
    """Under a supervisor, stop when it dies, however it dies. With a broker of the supervisor's own, which died with
    it, there is nothing to wait for: who has not left soon is ended, before the next `up` meets it."""
    if not os.environ.get("KERNELMILL_SUPERVISED"):
        return
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if parent == 1:
        raise SystemExit(143)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        time.sleep(ORPHAN_S)
        os._exit(143)

    if its_broker:
        threading.Thread(target=watch, daemon=True, name="parent").start()
