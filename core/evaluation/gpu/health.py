"""Judging on a GPU that may break: quarantine and probe, and verdicts that hold nobody else's trouble.

    health = GpuHealth("cuda:0", probe=lambda: gpu.probe.warm(zygote, "cuda:0"), prober=zygote, keep=[baselines])
    verdict = health.run(lambda: stage.judge(task, candidate, key))      # one candidate
    health.recover()                                                      # after the answer was sent: now or never mind

All workers on a GPU share its state (`gpu.shared`). A fault quarantines it: no candidate is begun there until a probe
in a fresh process has passed; whoever comes first probes, the others wait. A verdict that another's trouble may have
spoiled is made again: with the GPU alone where others were the trouble (memory that they held, an endless kernel beside
a measurement), beside others where the GPU itself was in doubt, which the probe has settled meanwhile.

`run` raises `GpuUnfit` when probe after probe fails or the GPU does not come free: the work must go back to the queue.
It raises `ContextLost` when this process's own CUDA context is broken: the process must end and be started again.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from core.evaluation.gpu import processes as gpu_processes
from core.evaluation.gpu.condition import (
    IN_DOUBT,
    LOST,
    STAYS,
    Condition,
    Fault,
    Probed,
    doubtful,
    fault_of,
    short_of_memory,
    spoilable,
)  # fmt: skip
from core.evaluation.gpu.processes import Process, Reading, XidWatch
from core.evaluation.gpu.quiet import Quiet
from core.evaluation.gpu.shared import Kept, Seen, Shared
from core.evaluation.spawn import Zygote, ZygoteError
from core.evaluation.verdict import Verdict

ATTEMPTS = 3
ALONE_S = 600.0
"""Longest wait for others to leave the GPU."""
RECOVER_S = 300.0
"""Longest wait for a quarantine's end."""
WAIT_S = 600.0
"""Longest wait of one `run` for all of these together."""
LEAK_MB = 64
OWN_DOING = ("illegal_access", "device_error")
"""A candidate's own faults that quarantine: its verdict need not wait for the probe."""
_LOOK_S = 0.05


class GpuUnfit(RuntimeError):
    """This GPU can't judge now; one line says why."""


class ContextLost(RuntimeError):
    """This process's CUDA context is broken."""


class GpuHealth:
    """One worker's hold on its GPU's state."""

    def __init__(
        self,
        device: str,
        *,
        probe: Callable[[], Probed],
        prober: Zygote | None = None,
        keep: Sequence[Zygote] = (),
        guard: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        folder: Path | None = None,
    ) -> None:
        """
        Args:
            device: `cuda:N`, or `cpu`.
            probe: probes in a fresh process; raises ZygoteError when that could not be had.
            prober: the zygote that it uses, if it does; started again when it is gone. It has no child after `judge`.
            keep: zygotes whose children may stay on the GPU between candidates.
            guard: held while probing, so that no timed block runs meanwhile: `lambda: lease(device)`.
            folder: for the shared state; the machine's temporary folder otherwise.
        """
        self.device = device
        self._probe, self._prober, self._keep, self._guard = probe, prober, keep, guard
        self._shared = Shared(gpu_processes.identity(device), folder)
        self._waited_s, self._wait_s = 0.0, WAIT_S
        """Of the present `run`."""
        self._renew = False
        """The prober's zygote has a child that would not end."""
        self._me = gpu_processes.this(os.getpid())
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._xids = XidWatch(device)
        self.quiet = Quiet(device, lambda: self._shared.look().quiet_ms, self._learn_quiet)
        if self._xids.watching:
            with self._shared.change() as kept:
                kept.condition.watches(os.getpid())

    def condition(self) -> Condition:
        """As it is now, for beats and people."""
        return self._shared.look().condition

    # --- judging ---

    def run(self, judge: Callable[[], Verdict], wait_s: float | None = None) -> Verdict:
        """The verdict of `judge` on a sound GPU; `wait_s` (None: WAIT_S) is the longest wait for one, all in all.
        Raises GpuUnfit and ContextLost, and what `judge` raises."""
        alone, self._waited_s = False, 0.0
        self._wait_s = WAIT_S if wait_s is None else wait_s
        for attempt in range(ATTEMPTS):
            with self._waiting():
                self.recover(min(RECOVER_S, self._wait_s - self._waited_s))
            verdict, why, own = self._attempt(judge, alone)
            if verdict is not None:
                if own not in OWN_DOING and spoilable(verdict) and self._settled():
                    why = why or IN_DOUBT
                if not why or attempt == ATTEMPTS - 1:
                    return verdict
            # Others are kept away where they were the trouble, and from the last attempt, whose verdict counts.
            alone = alone or why != IN_DOUBT or attempt == ATTEMPTS - 2
            with self._shared.change() as kept:
                kept.condition.again += 1
        raise GpuUnfit(f"{self.device}: no verdict in {ATTEMPTS} attempts: {why}")

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._waited_s += time.monotonic() - started

    def _settled(self) -> bool:
        """Wait for the end of a quarantine that came meanwhile; whether the GPU was in doubt in it."""
        before = self._shared.look().condition
        if before.quarantined_at:
            with self._waiting():
                self.recover(min(RECOVER_S, self._wait_s - self._waited_s))
        return self._shared.look().condition.grave != before.grave

    def _attempt(self, judge: Callable[[], Verdict], alone: bool) -> tuple[Verdict | None, str, str]:
        """(verdict, why it is in doubt, the fault that it stands for); no verdict where this process had no memory."""
        with contextlib.ExitStack() as stack:
            try:
                with self._waiting():
                    stack.enter_context(self._shared.sharing(alone, min(ALONE_S, self._wait_s - self._waited_s)))
            except TimeoutError as error:
                raise GpuUnfit(f"{self.device}: {error}") from None
            began = time.monotonic()
            number, others, grave = self._enter()
            self.quiet.looked = False
            try:
                verdict = judge()
            except Exception as error:  # ours: what a candidate does is a verdict
                self._leave()
                if short_of_memory(str(error)) and not alone:
                    return None, "no memory beside others", ""
                self._check_context(error)
                raise
            own = fault_of(verdict)
            self._renew = own == "unkillable"
            text = verdict.feedback.partition("\n")[0][:200]
            kept = self._leave("" if own == "parent_error" else own, text, began)
        if own == "parent_error":
            if LOST in text:  # it says so itself, and judges nothing any more
                self.fault("parent_error", text)
                raise ContextLost(f"{self.device}: {text}")
            self._check_context(RuntimeError(text))
        if own == "unkillable":
            return verdict, "a process could not be ended", own
        why = doubtful(
            verdict,
            company=not alone and (bool(others) or kept.entries > number),
            endless=not alone and not self.quiet.looked and kept.condition.endless_since(began, os.getpid()),
            grave=kept.condition.grave != grave,
            alone=alone,
        )
        return verdict, why, own

    def _check_context(self, error: Exception) -> None:
        """After an error of this process while it judged: raises ContextLost unless its context is still good."""
        if self.device == "cpu":
            return
        import torch

        try:
            (torch.ones(8, device=self.device) + 1).sum().item()
            torch.cuda.synchronize(self.device)
        except torch.OutOfMemoryError:
            return
        except RuntimeError as broken:
            text = str(broken).partition("\n")[0][:200]
            self.fault("parent_error", text)
            raise ContextLost(f"{self.device}: {text}") from error

    # --- faults and probes ---

    def fault(self, category: str, text: str = "") -> None:
        """Something of `gpu.condition.FAULTS` happened."""
        with self._shared.change() as kept:
            kept.condition.fault(Fault(category=category, at=time.monotonic(), pid=os.getpid(), text=text))

    def recover(self, wait_s: float = RECOVER_S) -> None:
        """Returns when the GPU is healthy, at once if it is. Raises GpuUnfit."""
        self._look_for_xids()
        deadline = time.monotonic() + wait_s
        while (condition := self._shared.look().condition).quarantined_at:
            now = time.monotonic()
            waiting = condition.probed_at + condition.backoff_s() - now if condition.failed_in_row else 0.0
            if condition.state == "unfit" and waiting > 0:
                raise GpuUnfit(
                    f"{self.device} is unfit: {condition.failed_in_row} probes in a row failed, the last said: "
                    f"{condition.why}; it is probed again in {waiting:.0f} s, and a person should look at it"
                )
            if now > deadline:
                raise GpuUnfit(f"{self.device} has been in quarantine for {wait_s:.0f} s: {condition.why}")
            if waiting > 0:
                time.sleep(min(waiting, _LOOK_S))
                continue
            with self._shared.probing() as may:
                if may and self._shared.look().condition.quarantined_at:
                    self._probe_once()
            if not may:
                time.sleep(_LOOK_S)

    def probe_now(self, wait_s: float = RECOVER_S) -> Probed:
        """Probe whatever the state is, as a person asks; the result counts as every probe's does. Raises GpuUnfit."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            with self._shared.probing() as may:
                if may:
                    return self._probe_once()
            time.sleep(_LOOK_S)
        raise GpuUnfit(f"{self.device}: others have been probing for {wait_s:.0f} s")

    def _probe_once(self) -> Probed:
        left = self.sweep()
        if left:
            found = Probed(passed=False, seconds=0.0, why=f"process {left[0].pid} {STAYS}")
        else:
            with self._guard():
                found = self._probed()
        with self._shared.change() as kept:
            kept.condition.probed(found, time.monotonic())
        return found

    def _probed(self) -> Probed:
        started = time.monotonic()
        if not self._renew:
            with contextlib.suppress(ZygoteError):
                return self._probe()
        try:
            if self._prober is not None:
                self._prober.stop()
                self._prober.start()
                self._prober.wait_ready()
            self._renew = False
            return self._probe()
        except (ZygoteError, OSError) as error:
            return Probed(passed=False, seconds=time.monotonic() - started, why=f"no fresh process: {error}"[:300])

    def _look_for_xids(self) -> None:
        numbers = self._xids.new()
        if numbers:
            with self._shared.change() as kept:
                for number in numbers:
                    kept.condition.xid(number, time.monotonic(), os.getpid())

    # --- who is there ---

    def _enter(self) -> tuple[int, set[str], int]:
        """(number of this entry, others that judge, grave faults so far)."""
        with self._shared.change() as kept:
            kept.active = {
                name: process for name, process in kept.active.items()
                if name != self._name and gpu_processes.alive(process)
            }  # fmt: skip
            others = set(kept.active)
            if self._me is not None:
                kept.active[self._name] = self._me
            kept.entries += 1
            return kept.entries, others, kept.condition.grave

    def _leave(self, fault: str = "", text: str = "", began: float = 0.0) -> Kept:
        """After a candidate: its fault, the driver's errors, its ghosts, its memory; the state then."""
        self._look_for_xids()
        with self._shared.change() as kept:
            kept.active.pop(self._name, None)
            if fault:
                now = time.monotonic()
                kept.condition.fault(Fault(category=fault, at=now, pid=os.getpid(), began=began, text=text))
        reading = gpu_processes.read(self.device)
        left = self.sweep(reading)
        if left:
            self.fault("unkillable", f"process {left[0].pid}")
        self._note_memory(reading)
        return self._shared.look()

    def note(self) -> None:
        """Remember what is below this process now, so that it is known as ours when this process is dead.

        Only a judge does: below an evaluator that probes for a person are whole workers, with candidates in their
        hands, and they are no ghosts.
        """
        if self._me is not None and (self._prober is not None or self._keep):
            mine = [Seen(process=process, worker=self._me) for process in gpu_processes.below(self._me.pid)]
            with self._shared.change() as kept:
                others = [seen for seen in kept.ours if seen.worker != self._me or seen not in mine]
                kept.ours = [seen for seen in others if gpu_processes.alive(seen.process)] + mine

    def sweep(self, reading: Reading | None = None) -> list[Process]:
        """Kill ghosts; those that are still there. Not while a candidate of this worker runs."""
        self.note()
        reading = reading or gpu_processes.read(self.device)
        if reading is None or not reading.processes:
            return []
        ours = {seen.process: seen.worker for seen in self._shared.look().ours}
        wanted = {process for process, worker in ours.items() if worker != self._me and gpu_processes.alive(worker)}
        for zygote in self._keep:
            if zygote.pid:
                wanted |= gpu_processes.below(zygote.pid)
        ended, left = gpu_processes.kill(gpu_processes.ghosts(reading.processes, ours, wanted))
        if ended:
            with self._shared.change() as kept:
                kept.condition.ghosts += ended
        return left

    def _note_memory(self, reading: Reading | None) -> None:
        free = None if reading is None else reading.unaccounted_mb
        if free is None:
            return
        with self._shared.change() as kept:
            if kept.unaccounted_mb is None or free < kept.unaccounted_mb:
                kept.unaccounted_mb = free
            more = free - kept.unaccounted_mb
            kept.condition.leaked_mb = more if more > LEAK_MB else 0

    def _learn_quiet(self, reading_ms: float) -> None:
        with self._shared.change() as kept:
            if not kept.quiet_ms or reading_ms < kept.quiet_ms:
                kept.quiet_ms = reading_ms
