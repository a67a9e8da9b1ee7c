"""How fast a correct candidate is: its task's baseline child, the lease, the floor, the other baselines, the verdict.

    measuring.begin(task)    while the candidate is imported: fork and load the eager baseline's child, wait for nothing
    measuring.verdict(...)   the candidate's child stands still; measure, and say how fast it is
    measuring.confirmed(...) after the candidate's child is gone: eager, clocked once more where nobody can slow it down
    measuring.others(...)    then: compiled baselines that nobody measured yet

The eager baseline runs beside every candidate, whatever is remembered of it: interleaved blocks are what makes the
interval honest on a GPU that drifts, and cost a few tenths of a second. What is remembered of eager tells whether the
GPU is still the one on which the others were measured. What fails in a baseline's child says so (ChildFailed.baseline).
"""

import contextlib
import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import torch

from core.evaluation import roofline
from core.evaluation.findings import Finding
from core.evaluation.gpu import afresh as gpu_afresh
from core.evaluation.gpu import again as gpu_again
from core.evaluation.gpu import baseline as gpu_baseline
from core.evaluation.gpu import timing
from core.evaluation.gpu.baselines import NOISY, Baseline, BaselineCache
from core.evaluation.gpu.clock import Clock, GpuSettings, Measurement, Side, Timed
from core.evaluation.gpu.device_reference import Samples
from core.evaluation.gpu.floor import Floor, floor_of
from core.evaluation.gpu.lease import Watch, first_call, lease
from core.evaluation.gpu.outputs import MAX_PLACES, Outputs
from core.evaluation.gpu.quiet import Quiet
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.gpu.task import GpuTask
from core.evaluation.gpu.turns import Turns
from core.evaluation.verdict import Verdict
from core.evaluation.walls import sandbox

BASELINE_S = 3600.0
"""A baseline's child lives as long as its task is the latest one, about this long at most."""
TRIES = 2
AWAY_S = 5.0
"""Longest wait for first calls that run; new ones are kept away meanwhile."""
MEMORY_BOUND = 2.0
"""A call that takes fewer times what the memory allows is bound by it."""
SLOWED = 3 * timing.MOST_DRIFT
"""Eager may be this much quicker when the candidate's process is gone."""
CONFIRMED_S = 5.0
"""Longest wait for quiet then."""
UNPAID = 0.5
"""A candidate that takes twice eager's time, at least."""
_log = logging.getLogger(__name__)
Spent = Callable[[str], AbstractContextManager[None]]
T = TypeVar("T")


class Measuring:
    """Measuring on one GPU; keeps the latest task's baseline child between candidates."""

    def __init__(
        self, settings: GpuSettings, zygote: GpuZygote, rng: random.Random, limits: Callable[[], sandbox.Limits],
        spent: Spent, turns: Turns,
    ) -> None:  # fmt: skip
        self.settings, self._zygote, self._rng, self._limits, self._spent = settings, zygote, rng, limits, spent
        self._turns = turns
        self._cache = BaselineCache(settings.baseline_folder)
        self._out: Outputs | None = None
        self._timed: dict[str, Timed] = {}
        """Task source -> what its baseline's child takes for all but the calls."""
        self._floor: tuple[str, Floor] | None = None
        self._watch: Watch | None = None
        self._called = False
        self._again: set[tuple[str, str]] = set()
        """(source, baseline) that this process measured: a GPU that is never twice the same is not asked for ever."""
        self._failed: dict[tuple[str, str], list[Baseline]] = {}
        """(source, baseline) -> troubles of the moment; after `TRIES` of them this process tries no more."""
        self.measured: timing.Measured | None = None
        """The latest measurement."""
        self._blocks: list[timing.Block] = []
        """Its blocks."""
        self.floor = Floor()
        self.quiet: Quiet | None = None
        """Looks out for other processes' kernels while it is measured."""
        self.warming = False
        """Nobody will ask what it took: measured once, without other baselines, and not remembered."""

    def begin(self, task: GpuTask) -> None:
        """See that the eager baseline's child is on its way."""
        left_s = self._zygote.deadline - time.monotonic()
        if not self._zygote.running or left_s < 2 * self.settings.wall_s:
            self._start(task, "eager", BASELINE_S + 2 * self.settings.wall_s)

    def _start(self, task: GpuTask, name: str, wall_s: float) -> None:
        self.forget()
        self._out = Outputs(self.settings.device, task.reference.outputs, whole=False)
        limits = msgspec.structs.replace(self._limits(), wall_s=wall_s)
        self._zygote.begin(limits, "start", self.settings.device, task.reference.flags)
        gpu_baseline.load(self._zygote, task, name, self._out)
        self._out.bind(self._zygote, self._turns)
        self._called = False

    def forget(self) -> None:
        """End the baseline's child; another task comes."""
        if self._zygote.running:
            self._zygote.end()
        if self._out is not None:
            self._out.close()
            self._out = None

    def verdict(
        self, task: GpuTask, key: str, candidate: GpuZygote, out: Outputs, samples: list[list[Samples]],
        places: list[torch.Tensor],
    ) -> Verdict | Finding:  # fmt: skip
        """The pass with its speed, or what a timed call did wrong. Raises ChildFailed."""
        self.measured, self._blocks = None, []
        clock = self._clock()
        with self._spent("baseline"):
            self._ready(task)
        with self._spent("floor"):
            self.floor = self._floor_of(task)
        assert self._out is not None
        measurement = Measurement(
            clock, task, Side(child=self._zygote, out=self._out), Side(child=candidate, out=out), self._rng,
            samples, places,
        )  # fmt: skip
        once = partial(self._once, clock, task, measurement, places, candidate)
        result = once(False, False)[0] if self.warming else gpu_again.until_clear(once, task.name)
        if isinstance(result, Finding):
            return result
        with (
            self._spent("wait"),
            lease(self.settings.device) as held,
            task.reference.yielding(held.pause),
            self._spent("compare"),
        ):
            finding = measurement.recheck()
        # Where memory is what takes the time, looking at all inputs is as dear as computing: nothing can be remembered.
        # And who is slower by far has gained nothing by it.
        worth = out.split is None or result.runtime_ms > MEMORY_BOUND * self.floor.memory_ms
        if finding is None and worth and result.speedup_high > UNPAID:
            mine, eager = Side(child=candidate, out=out), Side(child=self._zygote, out=self._out)
            took = result.runtime_ms, measurement.median_ms("candidate")
            look = partial(gpu_afresh.check, clock, task, mine, places, self._rng, *took, eager)
            with self._spent("lease"), lease(self.settings.device, alone=True), self._spent("afresh"):
                finding = look()
                if finding is not None:  # a neighbour's process that dies is dear for a moment
                    finding = self._undisturbed(look)
            if finding is None:
                with (
                    self._spent("wait"),
                    lease(self.settings.device) as held,
                    task.reference.yielding(held.pause),
                    self._spent("compare"),
                ):
                    finding = gpu_afresh.compare(task, mine)
        if finding is not None:
            return finding
        self.measured, self._blocks = result, measurement.blocks
        self._remember(task, result)
        return self._worded(key, result)

    def _once(
        self, clock: Clock, task: GpuTask, measurement: Measurement, places: list[torch.Tensor], candidate: GpuZygote,
        again: bool, apart: bool,
    ) -> tuple[timing.Measured | Finding, list[timing.Block], float]:  # fmt: skip
        """One measurement, its blocks, and its seconds less those in which others' kernels were waited for. `again`: it
        is not on the candidate's time; `apart`: with nobody's first call beside it."""
        assert self._watch is not None
        if again:
            measurement.let_go()
            candidate.deadline += gpu_again.MOST_S
        with (
            self._spent("lease"),
            self._watch.kept_away(AWAY_S) if apart else contextlib.nullcontext(),
            lease(self.settings.device, alone=True),
            self._spent("blocks"),
        ):
            self._turns.anew()
            began = time.monotonic() - self._waited_s
            result = self._undisturbed(partial(self._run, clock, task, measurement, places))
            self._timed[task.source] = clock.timed
            took_s = time.monotonic() - self._waited_s - began
        return result, measurement.blocks, took_s

    def _run(
        self, clock: Clock, task: GpuTask, measurement: Measurement, places: list[torch.Tensor]
    ) -> timing.Measured | Finding:
        """What all but the calls takes is learned here too, since what a busy GPU makes of it would be taken off every
        later candidate's wall."""
        assert self._out is not None
        if task.source in self._timed:
            clock.timed = self._timed[task.source]
        else:
            self._out.choose(places, self._rng)
            self._zygote.ask("call", 0, task.reference.training, False)  # blocks of flushes sample its output
            clock.learn(self._zygote, self._out.sample_trees())
        return measurement.run(self.settings.protocol, self.floor.ms)

    def confirmed(self, task: GpuTask, verdict: Verdict) -> Verdict:
        """The verdict over eager as it is without the candidate's process, where that is quicker: what ran beside
        eager's blocks made it seem slow. What was taken off the candidate's wall is learned again too, since too much
        of it lets any events count. Where others' kernels never end, what was measured stands."""
        result, out = self.measured, self._out
        paid = result is not None and verdict.kind == "pass" and result.speedup_high > UNPAID
        if not paid or result is None or out is None or not self._zygote.running:
            return verdict
        clock, side = self._clock(), Side(child=self._zygote, out=out)
        try:
            with self._spent("lease"), lease(self.settings.device, alone=True), self._spent("confirmed"):
                self._turns.take(self._zygote)
                beside_ms = result.baseline_ms
                look = partial(gpu_baseline.once_more, clock, side, task, self.settings, beside_ms, self._rng)
                now_ms = look() if self.quiet is None else self.quiet.around(look, CONFIRMED_S)
        except TimeoutError:
            return verdict
        except ChildFailed:  # of eager
            self.forget()
            return verdict
        was, now = self._timed[task.source], clock.timed
        less_ms, seed = (was.flush_ms - now.flush_ms, was.idle_ms - now.idle_ms), self._rng.randrange(2**32)
        found = timing.reread(result, self._blocks, *less_ms, np.random.default_rng(seed))
        if found is not result:
            _log.warning("task %s: flushes take %.4g ms alone, %.4g ms beside", task.name, now.flush_ms, was.flush_ms)
            self._timed[task.source] = now
        if now_ms < (1 - SLOWED) * found.baseline_ms:
            _log.warning("task %s: eager takes %.4g ms alone, %.4g ms beside", task.name, now_ms, result.baseline_ms)
            found = timing.rebased(found, now_ms)
        if found is result:
            return verdict
        more = verdict.feedback.removeprefix(self._worded(verdict.candidate_key, result).feedback)
        self.measured = found
        worded = self._worded(verdict.candidate_key, self.measured)
        return msgspec.structs.replace(worded, feedback=worded.feedback + more, screens=verdict.screens)

    def others(self, task: GpuTask, verdict: Verdict) -> Verdict:
        """Measure what other baselines are not known yet, and put all into the verdict, if it is a measured pass.

        A baseline that can't be measured is told in `baseline_trouble`; where it is the one that the reward is over,
        the speedup is over eager. Raises TimeoutError where that one finds no quiet GPU.
        """
        wanted = [name for name in dict.fromkeys((*self.settings.baselines, self.settings.baseline)) if name != "eager"]
        result = self.measured
        if result is None or not wanted or verdict.kind != "pass" or self.warming:
            return verdict
        more = verdict.feedback.removeprefix(self._worded(verdict.candidate_key, result).feedback)
        gains, troubles = {}, {}
        for name in wanted:
            found = self._other(task, name, result)
            if found.trouble:
                _log.warning("task %s has no %s baseline: %s", task.name, name, found.trouble)
                troubles[name] = found.trouble
            else:
                gains[name] = result.speedup / found.gain
        self.measured = msgspec.structs.replace(result, others=gains)
        worded = self._worded(verdict.candidate_key, self.measured)
        screens = tuple(dict.fromkeys((*verdict.screens, *worded.screens)))
        return msgspec.structs.replace(
            worded, feedback=worded.feedback + more, screens=screens, baseline_trouble=troubles
        )

    # --- the baseline's child ---

    def _undisturbed(self, measure: Callable[[], T]) -> T:
        """Under the lease; raises TimeoutError where other processes' kernels never end."""
        return measure() if self.quiet is None else self.quiet.around(measure, self._quiet_s)

    @property
    def _waited_s(self) -> float:
        """For others' kernels, in all."""
        return 0.0 if self.quiet is None else self.quiet.waited_s

    @property
    def _quiet_s(self) -> float:
        """Longest wait for others' kernels: a candidate's life, and some."""
        return self.settings.wall_s + 10.0

    def _clock(self) -> Clock:
        if self._watch is None:
            self._watch = Watch(self.settings.device)
        return Clock(self._watch, quiet=self.quiet, quiet_s=self._quiet_s)

    def _ready(self, task: GpuTask) -> None:
        """The eager child is loaded, was called once, and has the present parameters."""
        self.begin(task)
        child = self._zygote
        if not self._called:
            with first_call(self.settings.device):
                self._turns.take(child)
                child.ask("call", 0, task.reference.training, False)
            self._called = True
        child.ask("state", task.state_trees(), task.reference.built.required)

    def _floor_of(self, task: GpuTask) -> Floor:
        if self.settings.device == "cpu":
            return Floor()
        if self._floor is None or self._floor[0] != task.source:
            properties = torch.cuda.get_device_properties(torch.device(self.settings.device))
            gpu = roofline.of_gpu(properties.name)
            with lease(self.settings.device):
                found = floor_of(task, gpu, properties.L2_cache_size)
            self._floor = (task.source, found)
        return self._floor[1]

    # --- other baselines ---

    def _remember(self, task: GpuTask, result: timing.Measured) -> None:
        """Eager's time, for whoever comes; it stays what it was while the GPU is."""
        if self.warming:
            return
        key = gpu_baseline.key(task, self.settings, "eager")
        known = self._cache.get(key)
        if result.steady and (known is None or _drifted(known.median_ms, result.baseline_ms)):
            now = Baseline(
                median_ms=result.baseline_ms, eager_ms=result.baseline_ms, calls=result.calls, clock=result.clock
            )
            self._cache.put(key, now)

    def _other(self, task: GpuTask, name: str, result: timing.Measured) -> Baseline:
        key = gpu_baseline.key(task, self.settings, name)
        known = self._cache.get(key)
        fresh = known is not None and (known.trouble or not _drifted(known.eager_ms, result.baseline_ms))
        if known is not None and (fresh or (task.source, name) in self._again):
            return known
        failed = self._failed.get((task.source, name), [])
        if len(failed) >= TRIES:
            return failed[-1]
        self._again.add((task.source, name))
        with self._spent(name):
            found = self._alone(task, name, result.baseline_ms)
        if gpu_baseline.lasting(found):
            self._cache.put(key, found)
        else:
            self._failed[task.source, name] = [*failed, found]
        return found

    def _alone(self, task: GpuTask, name: str, eager_ms: float) -> Baseline:
        try:
            self._start(task, name, self.settings.baseline_wall_s)
            assert self._out is not None
            places = [
                torch.randint(0, max(1, t.numel()), (MAX_PLACES,), device=self.settings.device)
                for t in task.reference.outputs
            ]
            side = Side(child=self._zygote, out=self._out)
            return gpu_baseline.alone(
                side, task, self.settings, self._clock(), places, eager_ms, self._rng,
                autotunes=name == "max-autotune", quiet=self.quiet,
            )  # fmt: skip
        except TimeoutError as error:
            if name == self.settings.baseline:
                raise
            return Baseline(median_ms=0.0, eager_ms=eager_ms, calls=0, clock="", trouble=f"{NOISY}: {error}"[:500])
        finally:
            self.forget()

    # --- words ---

    def _worded(self, key: str, result: timing.Measured) -> Verdict:
        chosen, eager = self.settings.baseline, result.baseline_ms
        gains = {"eager": result.speedup, **result.others}
        if chosen not in gains:  # it was not measured, or can't be
            chosen = "eager"
        share = gains[chosen] / result.speedup
        title = gpu_baseline.TITLES
        lines = [
            f"correct: {gains[chosen]:.2f}x over {title[chosen]} (at least {result.speedup_low * share:.2f}x)",
            f"{result.runtime_ms:.4g} ms, {title[chosen]} {eager * share:.4g} ms.",
        ]
        rest = [f"{title[name]} {gains[name]:.2f}x" for name in gains if name != chosen]
        if rest:
            lines.append(f"Over others: {', '.join(rest)}.")
        if self.floor.ms:
            percent = 100 * result.roofline_share
            lines[1] += f" {percent:.0f} % of what the {self.floor.what} allow{'s' * (self.floor.what == 'memory')}"
            lines[1] += f" ({result.floor_ms:.4g} ms)."
        if result.below_floor:
            lines.append("It read faster than the hardware can do this task; the hardware's least time counts.")
        return Verdict(
            candidate_key=key, kind="pass", tier="gpu", compiled=True, correct=True, feedback="\n".join(lines),
            speed_kind="measured", speedup=round(gains[chosen], 4), speedup_low=round(result.speedup_low * share, 4),
            speedups={name: round(result.speedup_low * gain / result.speedup, 4) for name, gain in gains.items()},
            runtime_ms=result.runtime_ms, baseline_ms=eager * share, clock=result.statistics,
            screens=("below_floor",) if result.below_floor else (),
        )  # fmt: skip

    def close(self) -> None:
        self.forget()
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _drifted(before_ms: float, now_ms: float) -> bool:
    return abs(now_ms / before_ms - 1) > timing.MOST_DRIFT
