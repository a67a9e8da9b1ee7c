"""The local supervisor: broker and actors of one run on this machine, as real processes.

    lock the run folder -> check -> broker -> actors -> watch -> stop in order -> broker down

What dies is started again, the broker included (same ports, same store). The run ends when the learner has finished,
when somebody asks, or when an actor is given up. Stop order: who makes work first, who records last, so that what was
begun is finished and written down.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.agreement import without_token
from configs.differences import Change, differences, other_settings
from configs.load import ConfigError, load_standing
from configs.schema import RunConfig
from core.record.files import replace
from core.run_folder import RunFolder
from runners.preflight import check_run_folder
from runners.processes import Child
from runners.usage import UsageError
from runners.where import refuse_renamed

GRACE_S = {"generator": 10.0, "learner": 90.0}


class LocalRun:
    """One run under supervision. `on_line(actor, event)` gets every log line of every actor."""

    def __init__(self, config: RunConfig, *, on_line: Callable[[str, dict[str, Any]], None]) -> None:
        self.config = config
        self.folder = RunFolder(Path(config.run.folder) / config.run.name)
        self.children: list[Child] = []
        self.failed = ""
        self._on_line = on_line
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    # -- starting ----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make or recognise the run folder. Raises ConfigError when it holds another run."""
        root = self.folder.root
        refuse_another_run(self.folder, self.config)
        for path in (root, self.folder.logs, self.folder.checkpoints, self.folder.weights, self.folder.record):
            path.mkdir(parents=True, exist_ok=True)
        replace(self.folder.config, without_token(self.config).model_dump_json(indent=2).encode())

    async def start(self) -> None:
        """Broker first, then every actor."""
        from bus.server import EmbeddedServer

        if not self.config.bus.url:
            self._server = EmbeddedServer(self.folder.nats, self.config.bus.port, self.config.bus.monitor_port)
            self._server.start()  # in this thread: the broker dies with the thread that started it
            write_private(
                self.folder.bus,
                {
                    "url": self._server.url,
                    "token": self._server.token,
                    "monitor_url": self._server.monitor_url,
                    "supervisor_pid": os.getpid(),
                },
            )
            self._tasks.append(asyncio.create_task(self._keep_broker()))
        else:
            token = os.environ.get("NATS_TOKEN") or self.config.bus.token
            write_private(self.folder.bus, {"url": self.config.bus.url, "token": token, "supervisor_pid": os.getpid()})
        for kind, number in self._actors():
            self._add(kind, number)

    def _actors(self) -> list[tuple[str, int]]:
        local = self.config.local
        counts = {"generator": local.generators, "evaluator": local.evaluators, "gateway": local.gateways}
        kinds = ("recorder", "checkpointer", "learner", "evaluator", "generator", "gateway", "sampler")
        return [(kind, i) for kind in kinds for i in range(counts.get(kind, 1))]

    def names(self) -> list[str]:
        """Of its actors."""
        return [f"{kind}-{number}" for kind, number in self._actors()]

    def _add(self, kind: str, number: int) -> None:
        name = f"{kind}-{number}"
        child = Child(
            name,
            ["-m", "runners.run_actor", kind, "--config", str(self.folder.config), "--run-folder",
             str(self.folder.root), "--name", name],
            self.folder.log_file(name),
            restart_after_s=self.config.local.restart_after_s,
            give_up_after=self.config.local.give_up_after,
            on_line=self._on_line,
        )  # fmt: skip
        self.children.append(child)
        self._tasks.append(asyncio.create_task(self._keep(child)))

    async def _keep(self, child: Child) -> None:
        await child.keep_running()
        if child.failed and not self.failed:
            self.failed = child.failed

    async def _keep_broker(self) -> None:
        while not self._stopped:
            await asyncio.sleep(0.2)
            if self._server.pid is None and not self._stopped:
                self._on_line("broker", {"level": "warning", "event": "the broker died, starting it again"})
                self._server.start()

    # -- running and stopping ----------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Until the learner has finished, or an actor was given up (then `failed` says why)."""
        learner = next(child for child in self.children if child.name.startswith("learner"))
        while not learner.finished.is_set() and not self.failed:
            for task in self._tasks:
                if task.done() and not task.cancelled() and task.exception():
                    raise task.exception()  # type: ignore[misc]
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Stop all in order and take the broker down; leaves nothing running."""
        self._stopped = True
        from actors.run_end import ORDER

        for kinds in ORDER:
            group = [child for child in self.children if child.kind in kinds]
            await asyncio.gather(*(child.stop(GRACE_S.get(child.kind, 25.0)) for child in group))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        with contextlib.suppress(FileNotFoundError):
            self.folder.bus.unlink()


def refuse_another_run(folder: RunFolder, config: RunConfig) -> None:
    """Raises ConfigError when the folder holds a run that is not this one."""
    if not folder.config.exists():
        return
    standing = load_standing(folder.config)
    refuse_renamed(folder.root, standing.run.name)
    if found := differences(config.identity(), standing.identity()):
        where, here, there = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(
            f"{folder.root} holds a run with another config: {where} is {there} there and {here} here{more}; "
            f"go on with its own ({folder.config}), choose another run.name, or remove that folder if nobody needs it"
        )


def other_than_before(folder: RunFolder, config: RunConfig) -> list[Change]:
    """What the run of a folder goes on with that it did not have before; nothing while it has not begun."""
    if not folder.config.exists() or not (folder.record / "facts.jsonl").exists():
        return []
    return other_settings(load_standing(folder.config), without_token(config))


def write_private(path: Path, value: dict[str, Any]) -> None:
    """JSON that only this user may read: it holds the broker's token."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file)


def refuse_second_supervisor(folder: RunFolder) -> Any:
    """A lock on the run folder, held for the life of the process; raises UsageError when another one holds it."""
    import fcntl

    check_run_folder(folder.root)
    lock = (folder.root / ".supervisor").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(f"{folder.root} already runs under another `kernelmill up`; stop that one first") from None
    return lock


if sys.platform == "win32":
    raise ImportError("the local supervisor needs Linux or macOS")
