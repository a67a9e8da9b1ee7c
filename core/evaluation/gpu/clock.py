"""Measuring one candidate beside its task's eager baseline: the orders, the parent's clock, the checks of outputs.

Runs under the lease. What the readings mean is in timing.py. Every timed call's output is sampled at places that the
child learns with the order, and one call's whole output is compared; which call that is, is drawn. The way to the child
and the flushes that the parent's clock takes off are those of the baseline's child, which runs no candidate.
"""

import random
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from core.evaluation.findings import Finding
from core.evaluation.gpu import timing
from core.evaluation.gpu.device_reference import PART_ELEMENTS, Samples
from core.evaluation.gpu.outputs import MAX_CALLS, Outputs, Taken
from core.evaluation.gpu.task import SETS, GpuTask
from core.evaluation.waits import BASELINE_S

MOST_REMADE = 4
"""Blocks made again in one measurement because they look odd."""
MOST_DISTURBED = 12
"""Blocks made again in one measurement because others' kernels ran at their end; what goes on then is for those to see
who look at the GPU before and after."""
REPLANS = 2
"""Times that a measurement begins anew with more calls in a block, since they turned out far quicker than estimated."""
CONTRADICTED_S = 1.5
"""Spent in one measurement on either side's blocks whose events the wall contradicts; the wall counts then. Each side
has its own: a candidate whose events are always contradicted would leave eager to count what it waited for a core."""
SLOW_MS = 300.0
"""One reading of a call this slow is estimate enough."""


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the stage is told."""

    device: str = "cuda:0"
    profile: str = "full"
    wall_s: float = 60.0
    """For one candidate, compilation and everything."""
    memory_mb: int = 16384
    """Host memory of a child."""
    part_elements: int = PART_ELEMENTS
    protocol: timing.Protocol = timing.Protocol()
    own_work: bool = True
    """Ask who did the work (gpu.honesty): tests of the other questions judge candidates without kernels."""
    warm_up: bool = True
    """Judge a tiny task at the start (gpu.warm)."""
    profile_lines: bool = False
    """Tell the candidate's and eager's kernels with their shares of the time."""
    counters: bool = False
    """Tell hardware counters of the candidate's heaviest kernel (gpu.counters), where they may be read."""
    spare: bool = True
    """Fork the next candidate's child, and make its CUDA context, while the latest verdict is read."""
    baselines: tuple[str, ...] = ("eager",)
    """Which are reported: `eager`, `compile`, `max-autotune` (gpu.baseline.MODES). Eager is always measured."""
    baseline: str = "eager"
    """The one that a verdict's speedup is over."""
    baseline_folder: str = ""
    """Where the others are remembered; empty is the user's cache folder (baselines.default_folder)."""
    baseline_wall_s: float = BASELINE_S
    """For one of the others, compilation and everything; once per task, GPU and version."""

    def __post_init__(self) -> None:
        known = ("eager", "compile", "max-autotune")
        odd = [name for name in (*self.baselines, self.baseline) if name not in known]
        if odd:
            raise ValueError(f"baseline {odd[0]!r}: wanted one of {', '.join(known)}")


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """What a clean baseline child takes for everything but the calls."""

    flush_ms: float
    """Of a call."""
    idle_ms: float
    """Of a block."""


class Child(Protocol):
    """Whom a clock gives orders to: gpu.spawn.GpuZygote."""

    def ask(self, command: str, *arguments: Any) -> Any: ...


class Seen(Protocol):
    """Who sees other processes' first calls: gpu.lease.Watch."""

    def look(self) -> bool: ...


class Glances(Protocol):
    """Who sees other processes' kernels: gpu.quiet.Quiet."""

    def glance(self) -> bool: ...

    def calm_down(self, most_s: float) -> None: ...


class Clock:
    """The parent's clock on one child at a time; `now` in seconds."""

    def __init__(
        self, watch: Seen, now: Callable[[], float] = time.perf_counter, quiet: Glances | None = None,
        quiet_s: float = 60.0,
    ) -> None:  # fmt: skip
        """`quiet_s` is the longest wait for `quiet` to see none of others' kernels."""
        self._watch, self._now, self._quiet, self._quiet_s = watch, now, quiet, quiet_s
        self._asked_at = 0.0
        self.anew()
        self.timed = Timed(flush_ms=0.0, idle_ms=0.0)

    def ask(self, child: Child, *order: Any) -> float:
        """Milliseconds from the order to the answer that the device is idle."""
        started = self._now()
        child.ask(*order)
        return (self._now() - started) * 1e3

    def anew(self) -> None:
        """Another measurement begins: it may make as many blocks again as the first."""
        self._disturbed = 0
        self._contradicted_s: dict[timing.Side, float] = {"baseline": 0.0, "candidate": 0.0}
        self.made_again = 0
        """Blocks that were spoilt."""

    def learn(self, child: Child, trees: Any) -> None:
        """What everything but the calls takes, from a clean child that has been called once."""
        idle = min(self.ask(child, "flushes", 0, *trees) for _ in range(5))
        flush = min((self.ask(child, "flushes", 20, *trees) - idle) / 20 for _ in range(3))
        self.timed = Timed(flush_ms=max(0.0, flush), idle_ms=idle)

    def estimate(self, child: Child, trees: Any) -> float:
        """One call, about; it warms the child up."""
        totals: list[float] = []
        while len(totals) < 3 and (not totals or totals[-1] < SLOW_MS):
            totals.append(self.ask(child, "block", 1, 0, -1, *trees))
        return max(0.0, timing.flushed(min(totals), self.timed.flush_ms, self.timed.idle_ms, 1))

    def block(
        self, child: Child, side: timing.Side, number: int, calls: int, first: int, keep: int, trees: Any
    ) -> timing.Block:
        """One block of calls, on the input sets from `first` on in turn, and both clocks' word for it."""
        self._watch.look()
        self._asked_at = self._now()
        total = self.ask(child, "block", calls, first, keep, *trees)
        witnessed = self._watch.look()
        events = _readings(child, calls)
        wall = timing.flushed(total, self.timed.flush_ms, self.timed.idle_ms, calls)
        return timing.Block(side=side, round=number, events_ms=tuple(events), wall_ms=wall, witnessed=witnessed)

    def spoilt(self, block: timing.Block) -> bool:
        """Whether the latest block is to be made again. Raises NeverQuietError.

        Beside somebody's first call, when kernels of another process still run; they are over when this returns. And
        when the wall contradicts the events: this process or the child may have waited for a core, which is as long as
        many calls of a small kernel. Work that the events miss is contradicted every time.
        """
        beside = block.witnessed and self._quiet is not None and self._disturbed < MOST_DISTURBED
        if beside and self._quiet is not None and self._quiet.glance():
            self._disturbed += 1
            self._quiet.calm_down(self._quiet_s)
        elif block.clock == "wall" and self._contradicted_s[block.side] < CONTRADICTED_S:
            self._contradicted_s[block.side] += self._now() - self._asked_at
        else:
            return False
        self.made_again += 1
        return True


class Side(msgspec.Struct, kw_only=True):
    """A child and its arena of samples."""

    child: Any
    out: Outputs


class Measurement:
    """All blocks of one candidate beside the baseline."""

    def __init__(
        self, clock: Clock, task: GpuTask, baseline: Side, candidate: Side, rng: random.Random,
        samples: list[list[Samples]], places: list[torch.Tensor],
    ) -> None:  # fmt: skip
        """`samples[set][output]` are right values at `places`."""
        self._clock, self._task, self._rng = clock, task, rng
        self._sides: dict[timing.Side, Side] = {"baseline": baseline, "candidate": candidate}
        self._samples, self._places = samples, places
        self.blocks: list[timing.Block] = []
        self._taken: tuple[list[torch.Tensor], int] | None = None

    def run(self, protocol: timing.Protocol, floor_ms: float) -> timing.Measured | Finding:
        """Rounds until it is enough; a wrong output of a timed call is a finding."""
        self._clock.anew()
        times_ms = {}
        for side, held in self._sides.items():
            held.out.choose(self._places, self._rng)
            times_ms[side] = self._clock.estimate(held.child, held.out.sample_trees())
        self._calls = self._planned(protocol, times_ms)
        for _ in range(REPLANS):
            found = self._rounds(protocol, floor_ms)
            if isinstance(found, Finding):
                return found
            # Who is slow while calls are estimated has few of them in a block, and the wall is coarse for those.
            more = self._planned(protocol, {side: self.median_ms(side) for side in self._sides})
            if more < 2 * self._calls:
                return found
            self._calls = more
        return self._rounds(protocol, floor_ms)

    def _planned(self, protocol: timing.Protocol, times_ms: dict[timing.Side, float]) -> int:
        """Calls in a block."""
        flush = self._clock.timed.flush_ms
        return min(timing.calls_per_block(protocol, times_ms["baseline"], times_ms["candidate"], flush), MAX_CALLS)

    def median_ms(self, side: timing.Side) -> float:
        """Of its blocks as they are read, whatever the floor."""
        return float(np.median([timing.median_ms(block) for block in self.blocks if block.side == side]))

    def _rounds(self, protocol: timing.Protocol, floor_ms: float) -> timing.Measured | Finding:
        started = self._clock._now()
        whole = self._rng.randrange(2 * protocol.rounds)
        """Which of the candidate's blocks one whole output is taken from: among those that are made in any case. One
        that the child has to hold is of a block behind the last, so that it is compared when others may measure."""
        holds = self._sides["candidate"].out.split is not None
        generator = np.random.default_rng(self._rng.randrange(2**32))
        self.let_go()
        self.blocks, remade, taken = [], 0, 0
        for number in range(protocol.most_rounds):
            for side in timing.one_round(self._rng):
                mine = side == "candidate"
                block = self._block(side, number, whole=mine and taken == whole and not holds)
                if isinstance(block, Finding):
                    return block
                taken += mine
                self.blocks.append(block)
            if number + 1 < protocol.rounds:
                continue
            for index in timing.disturbed(self.blocks)[: MOST_REMADE - remade]:
                again = self._block(self.blocks[index].side, self.blocks[index].round, whole=False)
                if isinstance(again, Finding):
                    return again
                self.blocks[index] = again
                remade += 1
            found = timing.measured(self.blocks, floor_ms, generator)
            if timing.enough(found, self._clock._now() - started, protocol):
                break
        if holds and isinstance(block := self._block("candidate", number, whole=True), Finding):
            return block
        return msgspec.structs.replace(found, remade=remade + self._clock.made_again)

    def let_go(self) -> None:
        """Of the output that was taken in an earlier measurement: a child that holds it has less room for the next."""
        taken, self._taken = self._taken, None
        if taken is not None and isinstance(taken[0], Taken):
            taken[0].done()

    def _block(self, side: timing.Side, number: int, whole: bool) -> timing.Block | Finding:
        held, calls = self._sides[side], self._calls
        while True:
            first = self._rng.randrange(SETS)
            # A huge output is not held beside the next ones.
            keep = calls - 1 if self._task.huge else self._rng.randrange(calls)
            chosen = held.out.choose(self._places, self._rng)
            trees = held.out.sample_trees()
            block = self._clock.block(held.child, side, number, calls, first, keep if whole else -1, trees)
            if not self._clock.spoilt(block):
                break
        if side == "candidate":
            finding = _compare_samples(self._samples, held.out, chosen, first, calls)
            if finding is not None:
                return finding
            if whole:
                self._taken = held.out.poison(), (first + keep) % SETS
                held.child.ask("take", held.out.whole_trees())
                held.child.ask("free")
        return block

    def recheck(self) -> Finding | None:
        """Compare the whole output of one timed call, once; the child has no other order meanwhile, and others may use
        the GPU again. Seconds for huge outputs."""
        if self._taken is None:
            return None
        (outputs, which), self._taken = self._taken, None
        nowhere = [torch.zeros(0, dtype=torch.int64, device=self._task.device)] * len(outputs)
        finding, _ = self._task.reference.check(self._task.values(which), outputs, nowhere, "A timed call's output.")
        self._task.give_back()
        return None if finding is None else msgspec.structs.replace(finding, stage="timing")


def _compare_samples(
    samples: list[list[Samples]], out: Outputs, chosen: torch.Tensor, first: int, calls: int
) -> Finding | None:
    for number, rows in enumerate(out.samples(calls)):
        for which in range(SETS):
            mine = rows[(which - first) % SETS :: SETS]
            mine = (mine.real if mine.is_complex() else mine).double()  # of complex ones the real part is sampled
            right = samples[which][number]
            wanted, allowed = right.wanted[chosen].double(), right.allowed[chosen]
            bad = ~((mine - wanted).abs() <= allowed) & torch.isfinite(wanted)
            if bool(bad.any()):
                text = f"{int(bad.any(1).sum())} of {len(mine)} timed calls gave another output than the right one"
                detail = "Calls are timed on other inputs in turn; each must compute its own output."
                return Finding(stage="timing", category="wrong_value", headline=text, detail=detail)
    return None


def _readings(child: Child, calls: int) -> list[float]:
    answer = child.ask("readings")
    if not isinstance(answer, list) or len(answer) != calls or not all(type(part) is float for part in answer):
        return []
    return answer
