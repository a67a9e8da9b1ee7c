"""A seeded generator of small elementwise programs: endless tasks whose right kernel is known.

A composition is a graph of 1 to 3 inputs and 2 to 4 operators in which every input and every result is used, no
operator is idle (it changes its operands), and the output varies, so that zeros, a constant or a stale output are
wrong answers. Equal seeds give equal compositions. Which side of the split one is on follows from its structure alone.

    >>> task = compose(seed=0, count=1, side="train")[0]
    >>> task.source, task.kernel(), task.mistake(random.Random(0))
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

from core.identity import digest
from core.tasks.compose_kernels import Style, kernel_source, model_source
from core.tasks.compose_mistakes import plant
from core.tasks.compose_operators import BY_NAME, CONSTANTS, OPERATORS
from core.tasks.compose_program import MAX_INPUTS, POINTS, SAMPLE, Program, Step, differ
from core.tasks.graph import INPUT, Node, canonical
from core.tasks.split import side_of
from core.tasks.task import Task

MIN_OPERATORS, MAX_OPERATORS = 2, 4
BINARY = tuple(operator for operator in OPERATORS if operator.arity == 2)

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Composition(Program):
    """A program as a task, with its right and wrong kernels."""

    @cached_property
    def source(self) -> str:
        """The task in the KernelBench format, with profiles."""
        return model_source(self)

    @cached_property
    def structure(self) -> str:
        """Equal to `structure_of(self.source)`, without parsing."""
        nodes: list[Node] = [(INPUT, ())] * self.inputs
        places = list(range(self.inputs))
        for step in self.steps:
            places.append(BY_NAME[step.operator].add_to(nodes, [places[operand] for operand in step.operands]))
        return canonical(nodes, places[-1:])

    @cached_property
    def name(self) -> str:
        return "c" + digest(repr((self.inputs, self.steps)), size=6)

    @property
    def level(self) -> int:
        """Grows with the number of operators: 1, 2, 3 for 2, 3, 4."""
        return len(self.steps) - 1

    def task(self, backend: str = "triton") -> Task:
        return Task(
            task_id=f"composed/{self.name}",
            name=self.name,
            level=self.level,
            origin="composed",
            source=self.source,
            backend=backend,
            structure=self.structure,
        )

    def kernel(self, style: Style = "fused") -> str:
        """A correct `ModelNew`: `fused` in one pass, `staged` with an intermediate that goes to memory and back."""
        return kernel_source(self, style)

    def mistake(self, rng: random.Random, style: Style = "fused") -> tuple[str, str]:
        """The kernel with exactly one planted mistake, and its kind (a key of `MISTAKES`)."""
        return plant(self, rng, style)


def sound(composition: Composition) -> bool:
    """No operator is idle, and the output varies and stays small."""
    values = composition.values(SAMPLE[: composition.inputs])
    for number, step in enumerate(composition.steps, start=composition.inputs):
        if not all(differ(values[number], values[operand]) for operand in step.operands):
            return False
    output = values[-1]
    middle = math.fsum(output) / POINTS
    spread = math.sqrt(math.fsum([(value - middle) ** 2 for value in output]) / POINTS)
    sizes = [abs(value) for value in output]
    return max(sizes) < 60.0 and spread > 0.05 and spread > 0.2 * math.fsum(sizes) / POINTS


def pick(rng: random.Random, choices: Sequence[Choice]) -> Choice:
    """One of them, by random() alone, so that draws are the same in every Python."""
    return choices[int(rng.random() * len(choices))]


def draw(rng: random.Random) -> Composition | None:
    """One attempt; None when it is not sound or doubles a step."""
    inputs = 1 + int(rng.random() * MAX_INPUTS)
    count = max(inputs, MIN_OPERATORS + int(rng.random() * (MAX_OPERATORS - MIN_OPERATORS + 1)))
    unused = list(range(inputs))
    steps: list[Step] = []
    for number in range(inputs, inputs + count):
        # Each step can bring the unused values down by one, and exactly one, the output, may remain.
        spare = inputs + count - number + 1 - len(unused)
        operator = pick(rng, OPERATORS if spare else BINARY)
        first = pick(rng, unused if spare < 2 or rng.random() < 0.8 else range(number))
        if operator.arity == 1:
            operands: tuple[int, ...] = (first,)
        else:
            others = [value for value in (range(number) if spare else unused) if value != first]
            if not others:
                return None
            operands = (first, pick(rng, others))
        steps.append(Step(operator.name, operands, pick(rng, CONSTANTS) if operator.constant else None))
        unused = [value for value in unused if value not in operands] + [number]
    if len(set(steps)) < count:
        return None
    composition = Composition(inputs, tuple(steps))
    return composition if sound(composition) else None


def compositions(seed: int, side: Literal["train", "heldout", "all"] = "all") -> Iterator[Composition]:
    """Distinct compositions without end; equal seeds give equal ones, and the sides are cut from one stream."""
    rng = random.Random(f"compose {seed}")
    seen: set[Composition] = set()
    while True:
        composition = draw(rng)
        if composition is None or composition in seen:
            continue
        seen.add(composition)
        if side == "all" or side_of(composition.structure) == side:
            yield composition


def compose(seed: int, count: int, side: Literal["train", "heldout", "all"] = "all") -> list[Composition]:
    """The first `count` compositions of a seed on one side of the split (about 40 µs each; 7 times that held out)."""
    if count < 0:
        raise ValueError(f"count of compositions must be 0 or more, got {count}")
    if side not in ("train", "heldout", "all"):
        raise ValueError(f"side must be 'train', 'heldout' or 'all', got {side!r}")
    stream = compositions(seed, side)
    return [next(stream) for _ in range(count)]
