"""Examples for supervised training: a composed task and the kernel to answer with, some of them deliberately wrong.

Only tasks of the train side are used. Mistakes leave the policy that is taught with room to improve: it learns to
write kernels, and to be wrong now and then, which reinforcement can then unlearn. Plain data: prompts are put
together and tokenized elsewhere.
"""

import random
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from core.tasks.compose import compositions
from core.tasks.compose_kernels import Style
from core.tasks.task import Task


class Pair(NamedTuple):
    """One example. `previous` is None for a first turn; for a second turn it is the kernel that failed."""

    task: Task
    kernel: str
    """What the policy is taught to answer."""
    mistake: str | None = None
    """Kind of the mistake in `kernel`; None when it is right."""
    previous: str | None = None
    """The wrong kernel of the first turn that `kernel` answers after."""
    previous_mistake: str | None = None
    style: Style = "fused"
    """Of both kernels."""


def pairs(
    seed: int,
    count: int,
    *,
    mistakes: float = 0.0,
    repair_mistakes: float = 0.0,
    second_turns: float = 0.0,
    staged: float = 0.0,
) -> Iterator[Pair]:
    """`count` examples, each of another composition; equal arguments give equal examples.

    Args:
        mistakes: share of first turns whose kernel carries one planted mistake.
        repair_mistakes: share of second turns whose kernel still carries one.
        second_turns: share of examples that are second turns.
        staged: share of examples written in the slow `staged` style.
    """
    shares = {"mistakes": mistakes, "repair_mistakes": repair_mistakes, "second_turns": second_turns, "staged": staged}
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"pairs: {name} is a share and must be between 0 and 1, got {share}")
    rng = random.Random(f"pairs {seed}")
    for composition in islice(compositions(seed, "train"), count):
        # Always four draws, so that changing one share leaves the other choices as they were.
        style: Style = "staged" if rng.random() < staged else "fused"
        second = rng.random() < second_turns
        wrong = rng.random() < (repair_mistakes if second else mistakes)
        planter = random.Random(int(rng.random() * 2**53))
        previous, previous_mistake = composition.mistake(planter, style) if second else (None, None)
        kernel, mistake = composition.mistake(planter, style) if wrong else (composition.kernel(style), None)
        yield Pair(composition.task(), kernel, mistake, previous, previous_mistake, style)
