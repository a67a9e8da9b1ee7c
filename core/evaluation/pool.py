"""Judges in parallel behind one async call.

    pool = JudgePool(settings, workers=2)
    await pool.start()
    verdict = await pool.judge(task, candidate, key)
    await pool.stop()

N trusted worker processes, each with its own zygote; on GPUs they take the visible ones in turn. `judge` waits for a
free worker, never blocks the loop and never raises for what a candidate does. A worker that dies is restarted and the
candidate tried again, `settings.retries` times; then the verdict is `infra`. A call that is cancelled costs its worker,
which is restarted: its answer has no reader.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from core.evaluation import worker
from core.evaluation.nursery import Forked, Nursery
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.evaluation.waits import longest_s
from core.evaluation.walls import gpu as gpu_walls
from core.present import Present
from core.tasks.task import Task

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OUR_ERROR = 1
"""Exit code of Python for an exception that nobody caught."""
_START_S = 240.0
_REPLY = msgspec.msgpack.Decoder(worker.Reply)


class JudgeError(RuntimeError):
    """No worker can judge under these settings on this machine; the text says why."""


class JudgeUnfit(JudgeError):
    """The machine can't judge now (its GPU is unfit); the candidate was not judged and may go elsewhere."""


class _LostError(RuntimeError):
    """A worker's CUDA context is broken."""


class _Worker:
    """One process and its socket."""

    def __init__(
        self, settings: JudgeSettings, slot: int, gpus: Sequence[str] | None = None,
        nursery: Callable[[], Nursery] | None = None,
    ) -> None:  # fmt: skip
        """`nursery` gives what it is forked from; without one, and with a GPU, it is a program of its own."""
        self._settings, self._slot, self._gpus, self._nursery = settings, slot, gpus, nursery
        self._proves = slot < max(1, len(gpu_walls.shown() if gpus is None else gpus))
        """The first on its GPU, until it has."""
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.hello: worker.Hello | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None and self.hello is not None

    async def start(self) -> None:
        """Raises JudgeError when the worker says that it can't, EOFError or TimeoutError when it says nothing."""
        ours, theirs = socket.socketpair()
        with theirs:
            if self._settings.on_gpu or self._nursery is None:  # its environment names its GPU
                command = _command(theirs.fileno(), os.getpid(), self._slot, int(self._proves))
                # Started from this thread on purpose: the worker dies with the thread that started it, which runs the
                # loop.
                self._process = subprocess.Popen(  # noqa: ASYNC220
                    command,
                    pass_fds=[theirs.fileno()],
                    env=_environment() | gpu_walls.one_gpu(self._slot, self._gpus),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            else:
                self._process = self._nursery().fork(theirs.fileno(), self._slot, int(self._proves))
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._writer.write(worker.pack(self._settings))
        reply = await asyncio.wait_for(self._receive(), _START_S)
        if isinstance(reply, worker.Refused):
            await self.stop()
            raise JudgeError(reply.reason)
        assert isinstance(reply, worker.Hello)
        self.hello, self._proves = reply, False

    async def _receive(self) -> Any:
        assert self._reader is not None
        length = int.from_bytes(await self._reader.readexactly(4), "little")
        return _REPLY.decode(await self._reader.readexactly(length))

    async def ask(self, request: worker.Request, timeout_s: float) -> worker.Answer:
        assert self._writer is not None
        self._writer.write(worker.pack(request))
        await self._writer.drain()
        reply = await asyncio.wait_for(self._receive(), timeout_s)
        if isinstance(reply, worker.Unfit):
            raise JudgeUnfit(reply.reason)
        if isinstance(reply, worker.Lost):
            raise _LostError(reply.reason)
        assert isinstance(reply, worker.Answer)
        return reply

    async def left_with(self) -> int | None:
        """The exit code of a worker whose socket is closed; None of one that still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return None if self._process is None else await asyncio.to_thread(self._process.wait, 2.0)
        return None

    async def stop(self) -> None:
        """Close the socket, which ends an idle worker by itself; kill it if it is busy."""
        process, self._process, self.hello = self._process, None, None
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._writer = self._reader = None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 2.0)
            return
        process.kill()
        await asyncio.to_thread(process.wait)


def _command(*numbers: int) -> list[str]:
    return [sys.executable, "-m", "core.evaluation.worker", *map(str, numbers)]


def _environment() -> dict[str, str]:
    """Without what a judge has no business with."""
    hidden = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "NATS_")
    own = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in hidden)}
    paths = [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**own, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


class JudgePool:
    """See the module's text."""

    def __init__(self, settings: JudgeSettings, workers: int = 2, gpus: Sequence[str] | None = None) -> None:
        """`gpus` are those that workers take in turn, as CUDA_VISIBLE_DEVICES names them; None: the visible ones."""
        if workers < 1:
            raise ValueError(f"workers = {workers}: at least 1")
        self.settings = settings
        self._nursery: Nursery | None = None
        self._workers = [_Worker(settings, slot, gpus, self._running_nursery) for slot in range(workers)]
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        self._busy = Present()
        self._lease_s = 0.0
        self._waiting = 0
        self._judged = 0
        self._restarts = 0
        self._kinds: dict[str, int] = {}

    async def start(self) -> None:
        """Start all workers (seconds: they import torch); raises JudgeError when they can't judge here. One that dies
        of it without a word is started again: on a GPU that others use, that may be their doing."""
        results = await asyncio.gather(*map(self._started, self._workers), return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            await self.stop()
            if isinstance(failed[0], JudgeError):
                raise failed[0]
            raise JudgeError(f"a judge's worker did not start: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
        for one in self._workers:
            self._free.put_nowait(one)

    async def _started(self, one: _Worker) -> None:
        for left in reversed(range(self.settings.retries + 1)):
            try:
                return await one.start()
            except (EOFError, ConnectionError):
                await one.stop()
                if not left:
                    raise

    @property
    def workers(self) -> int:
        return len(self._workers)

    @property
    def walls(self) -> str:
        """How strong the sandbox is, in words; empty before `start`."""
        hello = self._workers[0].hello
        return hello.walls if hello else ""

    @property
    def gpu(self) -> str:
        """The first worker's GPU by its name; empty before `start`, and for the CPU tier."""
        hello = self._workers[0].hello
        return hello.gpu if hello else ""

    async def judge(self, task: Task, candidate: str, key: str) -> Verdict:
        """One terminal verdict; waits while all workers are busy. Raises JudgeUnfit."""
        self._waiting += 1
        try:
            one = await self._free.get()
        finally:
            self._waiting -= 1
        # Half of a surrogate pair is no text that could be sent or written to a file.
        candidate = candidate.encode("utf-8", "replace").decode()
        try:
            with self._busy:
                verdict = await self._judge_with(one, worker.Request(task=task, candidate=candidate, key=key))
        except asyncio.CancelledError:
            await one.stop()  # it is busy with an answer that nobody reads; the next call starts it again
            raise
        finally:
            self._free.put_nowait(one)
        self._judged += 1
        self._kinds[verdict.kind] = self._kinds.get(verdict.kind, 0) + 1
        return verdict

    async def _judge_with(self, one: _Worker, request: worker.Request) -> Verdict:
        settings = self.settings
        timeout_s = longest_s(settings)
        trouble, left_with = "", list[int | None]()
        for _ in range(settings.retries + 1):
            try:
                if not one.running:
                    await one.stop()
                    self._restarts += 1
                    await one.start()
                answer = await one.ask(request, timeout_s)
                self._lease_s += answer.lease_s
                return answer.verdict
            except JudgeUnfit:
                raise
            except (OSError, EOFError, TimeoutError, JudgeError, _LostError, msgspec.DecodeError) as error:
                trouble = f"{type(error).__name__}: {error}"
                left_with.append(await one.left_with() if isinstance(error, EOFError) else None)
                await one.stop()
        # A worker of ours ends by a signal or with our error's code, a candidate can't end it: the reference can.
        if all(code is not None and code >= 0 and code != _OUR_ERROR for code in left_with):
            feedback = f"the reference ended the judge's process, with exit code {left_with[-1]}: it must only compute"
            return Verdict(
                candidate_key=request.key, kind="infra", stage="load", category="task_error", feedback=feedback
            )
        feedback = f"judge worker {trouble}"[:400]
        return Verdict(candidate_key=request.key, kind="infra", stage="load", category="infra", feedback=feedback)

    def _running_nursery(self) -> Nursery:
        if self._nursery is not None and not self._nursery.running:
            self._nursery.end()
            self._nursery = None
        if self._nursery is None:
            self._nursery = Nursery(_command, _environment(), None, with_thread=True)  # that of the loop
        return self._nursery

    async def stop(self) -> None:
        """End all workers and what they run."""
        try:
            await asyncio.gather(*(one.stop() for one in self._workers))
        finally:
            if self._nursery is not None:
                self._nursery.end()
                self._nursery = None

    def gauges(self) -> dict[str, float]:
        """Numbers for the heartbeat."""
        counted = {f"judged_{kind}": float(number) for kind, number in self._kinds.items()}
        return {
            "workers": float(len(self._workers)),
            "busy": float(self._busy.count),
            "busy_s": self._busy.seconds,
            "lease_s": self._lease_s,
            "waiting": float(self._waiting),
            "judged": float(self._judged),
            "worker_restarts": float(self._restarts),
            **counted,
        }
