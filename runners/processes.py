"""One child process of the supervisor: started, its lines kept and forwarded, restarted when it dies.

A child that exits with 2 says that something must be mended by a person (its last line says what); one that dies again
and again right after its start is given up. Both end the run: `failed` then holds one line.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FRAME = re.compile(r"^ *(\| ?)+|^ *\+[-+]+( \d+ -+)?$")
YOUNG_S = 20.0
"""A death within this time of the start counts towards giving up."""


class Child:
    """An actor under supervision. `on_line(actor, event)` gets each log line as a mapping."""

    def __init__(
        self,
        name: str,
        words: list[str],
        log_file: Path,
        *,
        restart_after_s: float,
        give_up_after: int,
        on_line: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.name = name
        self.kind = name.rpartition("-")[0]
        self.restarts = 0
        self.failed = ""
        self.finished = asyncio.Event()
        """Set when it ended by itself with exit code 0."""
        self._words = words
        self._log_file = log_file
        self._restart_after_s = restart_after_s
        self._give_up_after = give_up_after
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._last_line = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    async def keep_running(self) -> None:
        """Run until it ends with 0, is stopped, or is given up."""
        young_deaths = 0
        while not self._stopping:
            started = time.monotonic()
            code = await self._run_once()
            if self._stopping:
                return
            if code == 0:
                self.finished.set()
                return
            if code == 2:
                what = "start" if time.monotonic() - started < YOUNG_S else "go on"
                self.failed = f"{self.name} can't {what}: {self._last_line}"
                return
            young_deaths = young_deaths + 1 if time.monotonic() - started < YOUNG_S else 1
            if young_deaths >= self._give_up_after:
                self.failed = (
                    f"{self.name} died {young_deaths} times in a row right after its start ({describe(code)}): "
                    f"{self._last_line or 'it said nothing'}; its log is {self._log_file}"
                )
                return
            self.restarts += 1
            pause_s = min(self._restart_after_s * 2 ** (young_deaths - 1), 10.0)
            self._on_line(
                self.name,
                {
                    "level": "warning",
                    "event": f"died ({describe(code)}), starting it again (restarts: {self.restarts})",
                    "why": self._last_line,
                },
            )
            await asyncio.sleep(pause_s)

    async def stop(self, grace_s: float) -> None:
        """Ask it to stop; after `grace_s` end it by force. Returns when it is gone."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run_once(self) -> int:
        environment = {
            **os.environ,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # judges number cards so: the config's numbers mean one card to all
            "KERNELMILL_SUPERVISED": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._last_line = ""  # of an earlier life
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the supervisor alone, which stops all in order
            limit=1 << 20,
        )
        assert self._process.stdout is not None
        with self._log_file.open("ab") as log:
            async for line in _lines(self._process.stdout):
                log.write(line)
                log.flush()
                self._take(line)
        return await self._process.wait()

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if not text:
            return
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            event = {"level": "output", "event": text}
            # The trace of an exception group is drawn in frames: `  | ` before each line, a rule at the end.
            self._last_line = _FRAME.sub("", text) or self._last_line
        self._on_line(self.name, event)


async def _lines(stream: asyncio.StreamReader):
    """Lines of a stream; one that is too long for the buffer comes in pieces."""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial + b"\n"
            return
        except asyncio.LimitOverrunError as error:
            line = await stream.read(error.consumed)
        yield line


def describe(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
