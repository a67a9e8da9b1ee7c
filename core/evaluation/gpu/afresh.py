"""Whether a call is worth what it was timed at: calls on values that the candidate has not seen, by the parent's clock.

Timed calls go over two sets of inputs again and again, whose answers a candidate can remember. So the same block of one
call is made in turn on values that it has just had and on values that are new; the second must not be dearer, and its
whole output must be right. New values are written by this process, which leaves caches, translations and the GPU's turn
elsewhere than a call on known ones does: where a candidate seems dearer, eager is asked the same, and what it takes
more is everybody's. A machine that is busy makes calls on known values seem dear, and so hides memory: as long as they
take far longer than timed ones did, there are more of them. Runs under the lease, after the measurement.
"""

import random

import torch

from core.evaluation.findings import Finding
from core.evaluation.gpu import timing
from core.evaluation.gpu.clock import Clock, Side
from core.evaluation.gpu.task import GpuTask

LOOKS, PLENTY, MORE_LOOKS = 3, 12, 24
"""At first; where calls on known values seem far dearer than timed ones; where those on new ones seem dearer still."""
DEARER, DEARER_MS = 0.3, 0.05
"""A call on new values may take this share of a timed one, and this much, longer than one on known values."""


def check(
    clock: Clock, task: GpuTask, side: Side, places: list[torch.Tensor], rng: random.Random, runtime_ms: float,
    timed_ms: float, eager: Side | None = None,
) -> Finding | None:  # fmt: skip
    """What is remembered by value; the child then holds the output of the latest call, on new values of set 0, for
    `compare`. A call counts as `runtime_ms` and was read as `timed_ms`. `eager` is the yardstick. A host's caches know
    values too, so on the CPU no times are compared. Raises ChildFailed."""
    known: list[float] = []
    new: list[float] = []
    usual_ms: float | None = None if eager is not None else 0.0
    while len(new) < MORE_LOOKS:
        _look(clock, task, side, places, rng, known, new)
        if len(new) < LOOKS:
            continue
        if task.device == "cpu":
            return None
        if not is_dearer(new, known, runtime_ms, usual_ms or 0.0):
            known_ms = timing.flushed(min(known), clock.timed.flush_ms, clock.timed.idle_ms, 1)
            if known_ms <= allowed_ms(timed_ms) or len(new) >= PLENTY:
                return None
            continue
        if usual_ms is None and len(new) >= PLENTY:
            assert eager is not None
            usual_ms = _usual_ms(clock, task, eager, places, rng)
    text = f"a call on inputs it has not seen takes {min(new) - min(known):.3g} ms more than one on inputs it has"
    detail = f"It takes {min(known):.3g} ms on known inputs, all together. Compute every answer anew."
    return Finding(stage="timing", category="tampering", headline=text, detail=detail)


def _look(
    clock: Clock, task: GpuTask, side: Side, places: list[torch.Tensor], rng: random.Random,
    known: list[float], new: list[float],
) -> None:  # fmt: skip
    side.out.choose(places, rng)
    known.append(clock.ask(side.child, "block", 1, 0, -1, *side.out.sample_trees()))
    task.fresh_in_place()
    side.out.choose(places, rng)
    new.append(clock.ask(side.child, "block", 1, 0, 0, *side.out.sample_trees()))


def _usual_ms(clock: Clock, task: GpuTask, eager: Side, places: list[torch.Tensor], rng: random.Random) -> float:
    """What a call on new values takes more of one who remembers nothing."""
    known: list[float] = []
    new: list[float] = []
    while len(new) < PLENTY:
        _look(clock, task, eager, places, rng, known, new)
    return max(0.0, min(new) - min(known))


def is_dearer(new_ms: list[float], known_ms: list[float], runtime_ms: float, usual_ms: float = 0.0) -> bool:
    """Whether new values cost more than `usual_ms`: readings of whole blocks, of which a call takes `runtime_ms`."""
    return min(new_ms) - min(known_ms) + runtime_ms > usual_ms + allowed_ms(runtime_ms)


def allowed_ms(call_ms: float) -> float:
    """What a call of `call_ms` may take when it is looked at."""
    return (1 + DEARER) * call_ms + DEARER_MS


def compare(task: GpuTask, side: Side) -> Finding | None:
    """The whole output of the latest block of one call, against what set 0's values give now."""
    outputs = side.out.poison()
    side.child.ask("take", side.out.whole_trees())
    side.child.ask("free")
    nowhere = [torch.zeros(0, dtype=torch.int64, device=task.device)] * len(outputs)
    finding, _ = task.reference.check(task.values(0), outputs, nowhere, "A timed call on new inputs.")
    task.give_back()
    return None if finding is None else Finding(
        stage="timing", category=finding.category, headline=finding.headline, detail=finding.detail
    )  # fmt: skip
