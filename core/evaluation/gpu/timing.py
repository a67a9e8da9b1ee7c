"""What clock readings say about a candidate's speed: plan, statistics, decisions. Pure; nothing is timed here.

The protocol. Under one lease of the GPU, baseline (B) and candidate (C) run in blocks, B C C B or C B B C, so that a
GPU that grows hotter or slower meets both alike. A block is a number of calls, each after a flush of the L2 cache and
on the next one of several input sets. Every block is read by two clocks:

    events   the child's CUDA events around each call: precise, but read by a process that runs the candidate's code
    wall     the parent's clock from the order to the answer that the device is idle, less the same block of flushes
             alone, by the number of calls: coarse, can't be forged, sees work on streams that the events miss

The events count where the wall confirms them (`agreed`): of a candidate their median too, since that is what its time
is taken from. Where it contradicts them the block is made again, and where it does so again and again, the wall counts.
The speedup is the ratio of the medians, its interval a bootstrap over rounds and calls; a reward takes the lower end.
No time counts as less than the roofline allows. Rounds go on until the interval is narrow or the budget is used up
(`enough`). A block that another process's first call may have disturbed, and that does not look like its side's other
blocks, is made again (`disturbed`); one that merely looks odd is kept, or a candidate that is slow now and then would
look fast.
All times are in milliseconds but budgets (`_s`).
"""

import random
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

Side = Literal["baseline", "candidate"]

WALL_RATIO, WALL_SLACK_MS, BLOCK_SLACK_MS = 1.10, 0.02, 0.1
"""The wall may exceed the events by a tenth and by 20 µs per call, which is what a launch costs on an idle stream. Of
eager's blocks also by what the way to the child and back varies: one quick call a block, beside a candidate that takes
a second, is nothing beside that. A candidate gets none of it: it has a say in how few calls a block has."""
LEAST_MS, MOST_MS = 1e-6, 1e9
"""No call takes less, or more: what a child says beyond that would make ratios that are no numbers."""
MOST_DRIFT = 0.05
"""Between the baseline's first and last blocks; beyond it the measurement is made again."""
MOST_BUDGETS = 2.0
"""The least calls may take so many times what a measurement has."""
OUTLIER = 1.5
"""A call that took this many medians was disturbed."""
MOST_OUTLIERS = 0.2
LEVEL = 0.95
RESAMPLES = 1000
NARROW = 0.01
"""An interval of this width, as a share of the speedup, needs no more rounds."""
WIDE = 0.05
"""One of this width tells more of what happened meanwhile than of the candidate: measure again."""
DEVIATION = 0.01
"""A block this far from its side's others was disturbed, if there is a witness."""


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    rounds: int = 2
    """At least; each is four blocks, two of either side."""
    most_rounds: int = 8
    budget_s: float = 1.5
    """Of one measurement, both sides and flushes together; the least rounds and calls are made in any case."""
    least_calls: int = 3
    most_calls: int = 25
    """Per block: 100 of either side in two rounds."""

    def __post_init__(self) -> None:
        if self.rounds < 2:
            raise ValueError(f"rounds = {self.rounds}: at least 2, or there is no interval")
        if self.most_rounds < self.rounds:
            raise ValueError(f"most_rounds = {self.most_rounds}: wanted {self.rounds} or more, the least")
        if not 1 <= self.least_calls <= self.most_calls:
            raise ValueError(f"calls per block {self.least_calls} to {self.most_calls}: wanted 1 <= least <= most")
        if not self.budget_s > 0:
            raise ValueError(f"budget_s = {self.budget_s}: wanted seconds above 0")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One side's calls in a row."""

    side: Side
    round: int
    events_ms: tuple[float, ...]
    """One reading per call, as the child says."""
    wall_ms: float
    """Per call, flushes taken off, as the parent's clock says. Below 0 where more is taken off than it took."""
    witnessed: bool = False
    """Another process was in a first call meanwhile."""

    @property
    def agreed(self) -> "Agreed":
        return agreed(self.events_ms, self.wall_ms, trusted=self.side == "baseline")

    @property
    def clock(self) -> Literal["events", "wall"]:
        """The one that counts."""
        return self.agreed.clock


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """One block's times as they count."""

    times_ms: tuple[float, ...]
    clock: Literal["events", "wall"]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one measurement found."""

    runtime_ms: float
    """Median of the candidate's calls; never below the floor."""
    baseline_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    """Ends of the interval at `LEVEL`."""
    floor_ms: float
    roofline_share: float
    """Floor over candidate's time, 1 at most."""
    below_floor: bool
    """The candidate read faster than the hardware allows; the floor counts."""
    clock: Literal["events", "wall"]
    """The candidate's clock; `wall` where it contradicted the events of half of the blocks."""
    drift: float
    """Baseline's last blocks over its first ones, less one."""
    outliers: float
    """Share of disturbed calls, either side."""
    calls: int
    """Of the candidate."""
    rounds: int
    remade: int = 0
    """Blocks that were made again."""
    others: dict[str, float] = {}
    """Other baselines by name: the speedup over each."""
    statistics: dict[str, float] = {}
    """Of the candidate's calls as they were read, and of eager's with `baseline_` before: calls, mean_ms, std_ms,
    min_ms, max_ms."""

    @property
    def width(self) -> float:
        """Of the interval, as a share of the speedup."""
        return (self.speedup_high - self.speedup_low) / self.speedup

    @property
    def steady(self) -> bool:
        """Whether the GPU stayed the same while it was measured; else measure again."""
        return abs(self.drift) <= MOST_DRIFT and self.outliers <= MOST_OUTLIERS

    @property
    def clear(self) -> bool:
        """Whether it needs no second measurement."""
        return self.steady and self.width <= WIDE


def one_round(rng: random.Random) -> tuple[Side, Side, Side, Side]:
    """Blocks in order: B C C B or C B B C by chance, so that none knows its turn."""
    first: Side = rng.choice(("baseline", "candidate"))
    other: Side = "candidate" if first == "baseline" else "baseline"
    return first, other, other, first


def enough(found: Measured, spent_s: float, protocol: Protocol) -> bool:
    """Whether to stop after this many rounds: narrow and steady, or one more would not fit the budget."""
    if found.rounds < protocol.rounds:
        return False
    if found.rounds >= protocol.most_rounds or spent_s * (found.rounds + 1) / found.rounds > protocol.budget_s:
        return True
    return found.steady and found.width <= NARROW


def disturbed(blocks: Sequence[Block]) -> list[int]:
    """Which blocks to make again: those with a witness whose median is off that of their side's blocks."""
    found = []
    for side in ("baseline", "candidate"):
        medians = {index: median_ms(block) for index, block in enumerate(blocks) if block.side == side}
        middle = float(np.median(list(medians.values()))) if medians else 0.0
        found += [
            index
            for index, median in medians.items()
            if blocks[index].witnessed and abs(median - middle) > DEVIATION * middle
        ]
    return sorted(found)


def median_ms(block: Block) -> float:
    """Of its calls, as they count."""
    return float(np.median(block.agreed.times_ms))


def calls_per_block(protocol: Protocol, baseline_ms: float, candidate_ms: float, flush_ms: float) -> int:
    """Calls per block that fit the budget, from one call's estimated times; the same for both sides. Where the least
    number would take many budgets, one: nobody else can measure meanwhile."""
    pair_s = (max(0.0, baseline_ms) + max(0.0, candidate_ms) + 2 * flush_ms) / 1e3
    fits = int(protocol.budget_s / max(pair_s * 2 * protocol.rounds, 1e-9))
    least = protocol.least_calls
    if pair_s * 2 * protocol.rounds * least > MOST_BUDGETS * protocol.budget_s:
        least = 1
    return max(least, min(protocol.most_calls, fits))


def flushed(total_ms: float, flush_ms: float, idle_ms: float, calls: int) -> float:
    """The wall per call of a block that took `total_ms`, where one flush takes `flush_ms` and a block without calls
    `idle_ms` (the way to the child and back). Below 0 where these were learned on a busier machine."""
    if calls < 1:
        raise ValueError(f"a block of {calls} calls has no time")
    return (total_ms - idle_ms) / calls - flush_ms


def reread(
    found: Measured, blocks: Sequence[Block], flush_ms: float, idle_ms: float, rng: np.random.Generator
) -> Measured:
    """The measurement with this much less taken off the walls of the candidate's blocks: what flushes and the way to
    the child took was learned while its process was there to slow them down. The same where it makes no difference."""
    calls = max((len(block.events_ms) for block in blocks), default=1)
    less_ms = flush_ms + idle_ms / calls
    if not blocks or less_ms <= WALL_SLACK_MS + (WALL_RATIO - 1) * found.baseline_ms:
        return found
    walls = [
        msgspec.structs.replace(block, wall_ms=block.wall_ms + less_ms) if block.side == "candidate" else block
        for block in blocks
    ]
    again = measured(walls, found.floor_ms, rng)
    return msgspec.structs.replace(again, remade=found.remade, others=found.others)


def agreed(events_ms: Sequence[float], wall_ms: float, trusted: bool = False) -> Agreed:
    """The clock that counts: events where the wall confirms them, else the wall for every call. `trusted`: of a child
    that runs no candidate.

    The wall is a mean, and so the mean must agree with it: a block whose slow calls the median would drop does not look
    forged. But who writes its own readings can put a block's time into a few of them and what it likes into the others:
    a candidate's median must agree too. One whose calls differ so much counts by the wall, which is what they cost.
    """
    readings = [float(reading) for reading in events_ms]
    calls = len(readings)
    if readings and all(LEAST_MS <= reading <= MOST_MS for reading in readings):
        mean, slack = sum(readings) / calls, WALL_SLACK_MS + (BLOCK_SLACK_MS / calls if trusted else 0.0)
        if wall_ms <= WALL_RATIO * (mean if trusted else min(mean, statistics.median(readings))) + slack:
            return Agreed(times_ms=tuple(readings), clock="events")
    return Agreed(times_ms=(max(wall_ms, LEAST_MS),) * max(1, calls), clock="wall")


def ratio_interval(
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Interval at `LEVEL` of median baseline over median candidate: rounds are drawn with replacement, then calls in
    each, the same rounds for both sides. `baseline[r]` and `candidate[r]` are round r's times."""
    if len(baseline) != len(candidate) or not all((*baseline, *candidate)):
        raise ValueError("wanted as many rounds of either side, none empty")
    rounds = rng.integers(0, len(baseline), (resamples, len(baseline)))
    medians = [np.median(_drawn(side, rounds, rng), axis=1) for side in (baseline, candidate)]
    ratios = medians[0] / medians[1]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


def _drawn(side: Sequence[Sequence[float]], rounds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Times of the drawn `rounds` [resamples, rounds]: from each as many calls as the shortest round has."""
    each = min(map(len, side))
    sizes = np.array([len(times) for times in side])
    held = np.zeros((len(side), sizes.max()))
    for number, times in enumerate(side):
        held[number, : len(times)] = times
    picks = (rng.random((*rounds.shape, each)) * sizes[rounds][:, :, None]).astype(int)
    return held[rounds[:, :, None], picks].reshape(len(rounds), -1)


def roofline_floor_ms(
    read_bytes: float, written_bytes: float, dot_flops: float, gb_per_s: float, matrix_tflops: float, l2_bytes: float
) -> float:
    """What no kernel beats after a flush: inputs come from memory, outputs beyond the L2 cache go to it, and the matrix
    units do the matrix operations."""
    moved = read_bytes + max(0.0, written_bytes - l2_bytes)
    return max(moved / gb_per_s * 1e-6, dot_flops / matrix_tflops * 1e-9)


def measured(blocks: Sequence[Block], floor_ms: float, rng: np.random.Generator) -> Measured:
    """The decision. `blocks` hold at least one of either side in every round."""
    sides: dict[str, list[tuple[int, Agreed]]] = {"baseline": [], "candidate": []}
    for block in blocks:
        sides[block.side].append((block.round, block.agreed))
    rounds = sorted({block.round for block in blocks})
    times: dict[str, list[list[float]]] = {
        side: [[t for number, block in found if number == wanted for t in block.times_ms] for wanted in rounds]
        for side, found in sides.items()
    }
    flat = {side: [t for part in parts for t in part] for side, parts in times.items()}
    if not flat["baseline"] or not flat["candidate"]:
        raise ValueError("wanted blocks of both sides")
    baseline, candidate = float(np.median(flat["baseline"])), float(np.median(flat["candidate"]))
    low, high = ratio_interval(times["baseline"], times["candidate"], rng)
    below = candidate < floor_ms
    if below:
        scale = candidate / floor_ms
        candidate, low, high = floor_ms, low * scale, high * scale
    ordered = [np.median(block.times_ms) for _, block in sides["baseline"]]
    third = max(1, len(ordered) // 3)
    walls = sum(block.clock == "wall" for _, block in sides["candidate"])
    middle = {side: float(np.median(found)) for side, found in flat.items()}
    disturbed = sum(t > OUTLIER * middle[side] for side, found in flat.items() for t in found)
    return Measured(
        runtime_ms=candidate,
        baseline_ms=baseline,
        speedup=baseline / candidate,
        speedup_low=min(low, baseline / candidate),
        speedup_high=max(high, baseline / candidate),
        floor_ms=floor_ms,
        roofline_share=min(1.0, floor_ms / candidate),
        below_floor=below,
        clock="wall" if 2 * walls >= len(sides["candidate"]) else "events",
        drift=float(np.median(ordered[-third:]) / np.median(ordered[:third])) - 1,
        outliers=disturbed / (len(flat["baseline"]) + len(flat["candidate"])),
        calls=len(flat["candidate"]),
        rounds=len(rounds),
        statistics={**_statistics(flat["candidate"]), **_statistics(flat["baseline"], "baseline_")},
    )


def rebased(found: Measured, baseline_ms: float) -> Measured:
    """The measurement over another baseline time."""
    share = baseline_ms / found.baseline_ms
    return msgspec.structs.replace(
        found,
        baseline_ms=baseline_ms,
        speedup=found.speedup * share,
        speedup_low=found.speedup_low * share,
        speedup_high=found.speedup_high * share,
    )


def _statistics(times_ms: Sequence[float], prefix: str = "") -> dict[str, float]:
    found = {
        "calls": len(times_ms), "mean_ms": np.mean(times_ms), "std_ms": np.std(times_ms), "min_ms": np.min(times_ms),
        "max_ms": np.max(times_ms),
    }  # fmt: skip
    return {prefix + name: float(value) for name, value in found.items()}
