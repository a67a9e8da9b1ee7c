"""Audits tasks from any process, one at a time, without importing torch here.

    with Auditor(Path("runs/mine/audit.jsonl")) as auditor:
        auditor.audit(task).status            # "sound", "degenerate", "noise" or "unknown"

Blocking: an actor calls it in a worker thread. Audits of sources that were audited before come from the file. The
process behind it starts with the first task that needs it; starting takes as long as importing torch, so auditors with
different limits may share one.
"""

import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from core.evaluation.audit.server import LONGEST, Order
from core.tasks.audit import Audit, Kept
from core.tasks.task import Task

GRACE_S = 60.0
"""For the process to start and to clean up, beyond what its tasks may take."""


class AuditorError(RuntimeError):
    """The auditing process itself does not work; says what it wrote last."""


class AuditProcess:
    """The auditing process: started when needed, started again once when it dies."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def ask(self, order: Order) -> Audit:
        """The audit of one task; others wait meanwhile.

        Raises:
            AuditorError: the process died or did not answer, twice, or it was stopped.
        """
        with self._lock:
            why = ""
            for _ in range(2):
                if self._stopped:
                    break
                process = self._running()
                assert process.stdin and process.stdout
                try:
                    process.stdin.write(msgspec.json.encode(order) + b"\n")
                    process.stdin.flush()
                    longest_s = LONGEST * order.wall_s + GRACE_S
                    return msgspec.json.decode(self._line(process, time.monotonic() + longest_s), type=Audit)
                except (BrokenPipeError, TimeoutError, EOFError, ValueError) as error:
                    if self._stopped:
                        break
                    self._end()
                    why = f"{type(error).__name__} {error}; exit code {process.returncode}"
        if self._stopped:
            raise AuditorError(f"stopped while {order.task_id} was audited")
        raise AuditorError(f"the auditing process ended while it audited {order.task_id}: {why}")

    def stop(self) -> None:
        """End the process and the audit that waits for it; nothing can be asked afterwards."""
        self._stopped = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin and process.stdout
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            environment = {
                **{name: value for name, value in os.environ.items() if "TOKEN" not in name and name != "NATS_URL"},
                "OMP_NUM_THREADS": str(self._threads),
                "MKL_NUM_THREADS": str(self._threads),
                "CUDA_VISIBLE_DEVICES": "",
                # Tasks that would download a model fail at once.
                "HF_HUB_OFFLINE": "1",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", "core.evaluation.audit.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
        return self._process

    @staticmethod
    def _line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout
        data = bytearray()
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("no answer in time")
            block = os.read(process.stdout.fileno(), 65536)
            if not block:
                raise EOFError("its output ended")
            data += block
        return bytes(data)


class Auditor:
    """Audits tasks in a process of its own; use as a context, or call `stop`."""

    def __init__(
        self,
        kept: Path | None = None,
        *,
        profile: str = "cpu",
        wall_s: float = 60.0,
        memory_mb: int = 4096,
        share: float = 1.0,
        threads: int = 1,
        process: AuditProcess | None = None,
    ) -> None:
        """
        Args:
            kept: file in which audits stay; None keeps them in memory.
            profile: sizes that are audited, where a task has profiles.
            wall_s: for one attempt at a task.
            memory_mb: that a task's process may allocate.
            share: of the audit's budget (`audit.shrink`) that a task may use; less is faster and less exact.
            threads: of torch in a process of its own.
            process: one that is shared with others; it is left running.
        """
        self._kept = Kept(kept)
        self._profile, self._wall_s, self._memory_mb, self._share = profile, wall_s, memory_mb, share
        self._process, self._is_shared = process or AuditProcess(threads), process is not None
        self._lock = threading.Lock()
        self._stopped = False

    def __enter__(self) -> "Auditor":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def torn(self) -> int:
        """Bytes that were cut off the file of kept audits: of the last one, which is made again."""
        return self._kept.torn

    def known(self, task: Task) -> Audit | None:
        """The audit that is kept for a task's source."""
        return self._kept.get(task, self._profile, self._share)

    def audit(self, task: Task) -> Audit:
        """The kept audit of the task's source, or a new one; it is kept before this returns.

        Raises:
            AuditorError: the process died or did not answer, twice, or the auditor was stopped.
        """
        with self._lock:
            found = self.known(task)
            if found is None:
                found = self._ask(task)
                self._kept.put(found)
            return found

    def stop(self) -> None:
        """End the process and the audit that waits for it; nothing can be audited afterwards but what is kept."""
        self._stopped = True
        if not self._is_shared:
            self._process.stop()

    def _ask(self, task: Task) -> Audit:
        if self._stopped:
            raise AuditorError(f"stopped while {task.task_id} was audited")
        order = Order(
            task_id=task.task_id,
            source=task.source,
            profile=self._profile,
            wall_s=self._wall_s,
            memory_mb=self._memory_mb,
            share=self._share,
        )
        return self._process.ask(order)
