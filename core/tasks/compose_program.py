"""A small elementwise program as plain data, and what it computes at fixed sample points.

The sample points tell idle operators and mistakes without effect apart from those that matter.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from core.tasks.compose_operators import BY_NAME

MAX_INPUTS = 3
POINTS = 16

Values = list[float]
"""A value at every sample point."""


class Step(NamedTuple):
    """One operator: it makes value number `inputs + i`, i being its place; operands are numbers of earlier values."""

    operator: str
    operands: tuple[int, ...]
    constant: float | None = None


@dataclass(frozen=True)
class Program:
    """`inputs` tensors, then one value per step; the last value is the output."""

    inputs: int
    steps: tuple[Step, ...]

    def values(self, inputs: Sequence[Values]) -> list[Values]:
        """Inputs and all results, in float64, at any number of points."""
        values = list(inputs)
        for operator, operands, constant in self.steps:
            compute = BY_NAME[operator].compute
            if len(operands) == 2:
                values.append(list(map(compute, values[operands[0]], values[operands[1]])))
            elif constant is None:
                values.append(list(map(compute, values[operands[0]])))
            else:
                values.append([compute(value, constant) for value in values[operands[0]]])
        return values

    def output_at_sample(self) -> Values:
        """[POINTS] values of the output."""
        return self.values(SAMPLE[: self.inputs])[-1]


def _normal_points(rng: random.Random) -> list[Values]:
    # Box-Muller on random(): the one stream that Python promises never to change.
    return [
        [math.sqrt(-2 * math.log(1 - rng.random())) * math.cos(2 * math.pi * rng.random()) for _ in range(POINTS)]
        for _ in range(MAX_INPUTS)
    ]


SAMPLE = _normal_points(random.Random(20240229))
"""MAX_INPUTS lists of POINTS standard normal values."""


def differ(left: Values, right: Values) -> bool:
    """Whether two results are far apart at a tenth of the sample points or more, seen on the scale of the left one."""
    far = 0.05 * math.fsum(map(abs, left)) / len(left)
    apart = 0
    for one, other in zip(left, right, strict=True):
        if abs(one - other) > far:
            apart += 1
            if 10 * apart >= len(left):
                return True
    return False
