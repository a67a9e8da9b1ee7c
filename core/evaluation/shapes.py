"""Hidden sizes: shapes that a candidate was never told, so that sizes written into a kernel don't pass.

What may vary, so that no honest kernel fails:
- a task with PROFILES: the constants that its profiles set. The author declares by them what a kernel must bear, so new
  sizes keep their structure: multiples of the greatest common divisor of a constant's declared values, powers of two
  where all declared values are. One size, another one for every candidate, goes beyond the next power of two above the
  judged one (the declared ones do too): a block that spans the judged row by its written-in size does not span it. The
  others stay below, and most are smaller, so cost stays.
- a task without PROFILES (KernelBench's files): its sizes are part of the problem, and a kernel specialised to them is
  honest. Only batch-like constants vary: those that are the first dimension of inputs and outputs, leave the
  constructor's arguments and all parameters alone, and whose rows the reference treats one by one. They shrink and
  keep half of the power of two that divides them, so that tiles without masks stay whole.
- batch-like constants of tasks with PROFILES grow beyond the next power of two, to at most twice the judged size: a
  grid or a single block made for the judged number of rows leaves the last rows unwritten.
Where the module does not run at any such sizes, there is no hidden shape.
"""

import ast
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch

from core import parsing
from core.evaluation import trees, work
from core.tasks import format

MAX_GROWTH = 2.5
"""Bytes that a hidden shape may move, in units of the judged sizes' bytes; small tasks are free."""
SMALL_BYTES = 65536


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """One constant of a task: its value at the judged profile and all values that its author declares."""

    name: str
    judged: int
    declared: tuple[int, ...]

    @property
    def has_profiles(self) -> bool:
        return len(self.declared) > 1

    def choices(self, low: float, high: float) -> list[int]:
        """Other values in [low, high] with the declared divisibility."""
        divisor = math.gcd(*self.declared)
        if not self.has_profiles:
            # Tiles of up to half the size stay whole: an unmasked kernel is honest there.
            divisor = max(1, (divisor & -divisor) // 2)
        if len(set(self.declared)) > 1 and all(value & (value - 1) == 0 for value in self.declared):
            divisor = min(self.declared)
            found: Iterable[int] = (divisor << step for step in range(40))
        else:
            start = max(1, math.ceil(low / divisor))
            found = range(start * divisor, int(high) + 1, divisor)
        return [value for value in found if low <= value <= high and value != self.judged]

    def larger(self) -> list[int]:
        """Values within the declared ones that a block made for the judged size does not span."""
        ceiling = next_power_of_two(self.judged)
        return self.choices(ceiling + 1, min(1.5 * ceiling + 2, max(self.declared))) or self.choices(
            ceiling + 1, min(2 * ceiling, max(self.declared))
        )


def next_power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def sizes_of(source: str, name: str, profile: str) -> list[Size]:
    """The constants that may vary."""
    tree = format.parse(source, name)
    profiles = format.profiles_of(tree, name)
    own = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 1:
            own.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    here = profiles.get(profile, {})
    if not profiles:
        return [Size(name=key, judged=value, declared=(value,)) for key, value in own.items()]
    found = []
    for key, value in own.items():
        declared = {value, *(sizes[key] for sizes in profiles.values() if key in sizes)}
        judged = here.get(key, value)
        if len(declared) > 1 and all(type(size) is int and size > 0 for size in declared):
            found.append(Size(name=key, judged=judged, declared=(judged, *sorted(declared - {judged}))))
    return found


def namespace_with(source: str, name: str, profile: str, sizes: dict[str, int]) -> dict[str, Any]:
    """The task's source executed at a profile's sizes, some of them replaced where they are assigned."""
    tree = parsing.parse(format.with_profile(source, profile, name))
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id in sizes:
                node.value = ast.copy_location(ast.Constant(sizes[target.id]), node.value)
    namespace: dict[str, Any] = {"__name__": "kernelmill_task"}
    exec(compile(tree, f"<task {name}>", "exec"), namespace)
    return namespace


Shapes = list[tuple[int, ...]]


def _only_rows_changed(before: Shapes, after: Shapes, was: int, now: int) -> list[bool] | None:
    """Which tensors have `was` rows and then `now`, all others being the same; None when anything else changed."""
    if len(before) != len(after):
        return None
    changed = []
    for old, new in zip(before, after, strict=True):
        if old != new and not (len(old) == len(new) and old[:1] == (was,) and new[:1] == (now,) and old[1:] == new[1:]):
            return None
        changed.append(old != new)
    return changed


def batched_inputs(judged: work.Counted, other: work.Counted, was: int, now: int) -> list[bool] | None:
    """Inputs whose first dimension is this constant, when outputs follow it alike and nothing else does."""
    inputs = _only_rows_changed(judged.inputs, other.inputs, was, now)
    outputs = _only_rows_changed(judged.outputs, other.outputs, was, now)
    if inputs is None or not outputs or not all(outputs) or not any(inputs):
        return None
    return inputs if judged.state == other.state and judged.init == other.init else None


def rows_are_independent(forward: Callable[[Any], Any], inputs: Any, batched: list[bool]) -> bool:
    """Whether the reference on half of the rows gives half of its rows, for both halves."""
    whole = trees.flatten(forward(inputs))[1]
    rows = whole[0].shape[0]
    if rows < 2:
        return False
    for first, last in ((0, rows // 2), (rows // 2, rows)):
        marks = iter(batched)
        part = trees.mapped(inputs, lambda x, a=first, b=last, m=marks: x[a:b] if next(m) else x)  # type: ignore[misc]
        for got, wanted in zip(trees.flatten(forward(part))[1], whole, strict=True):
            wanted = wanted[first:last]
            if got.shape != wanted.shape or not torch.allclose(
                got.double(), wanted.double(), rtol=1e-3, atol=1e-6, equal_nan=True
            ):
                return False
    return True


def draw_sizes(rng: random.Random, sizes: list[Size], batch_like: frozenset[str]) -> dict[str, int]:
    """Other values for as many constants as have any; {} when none has.

    Of the declared constants that are not batch-like, one goes beyond the judged one's power of two.
    """
    beyond = [size.name for size in sizes if size.has_profiles and size.name not in batch_like and size.larger()]
    stretched = rng.choice(beyond) if beyond else ""
    drawn = {}
    for size in sorted(sizes, key=lambda size: size.name != stretched):  # if not all fit, this one shall
        choices: list[int] = []
        ceiling = next_power_of_two(size.judged)
        if size.name == stretched:
            choices = size.larger()
        elif size.name in batch_like and size.has_profiles:
            choices = size.choices(ceiling + 1, min(2 * size.judged, 1.25 * ceiling + 2))
            choices = choices or size.choices(ceiling + 1, 2 * size.judged)
        if not choices and (size.has_profiles or size.name in batch_like):
            choices = size.choices(0.6 * size.judged, ceiling) or size.choices(0.25 * size.judged, ceiling)
        if choices:
            drawn[size.name] = rng.choice(choices)
    return drawn
