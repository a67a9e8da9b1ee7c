"""Makes a task small enough for a CPU by giving its module-level whole numbers smaller values.

Sizes are tried on the meta device, where nothing is computed: a smaller value counts only when the module still runs.
First the batch (a number that changes nothing but the first dimension of inputs), down to 2; then what leaves the
parameters as they are; then any number. Each is halved as long as the task is too large, the one that saves most first,
so that a task stays as near to its own sizes as the budget allows. An output keeps at least `FEW` elements as long as
that is possible: a few numbers say little about a task.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from core.evaluation import aten_costs
from core.evaluation.work import Counter
from core.tasks import format
from core.tasks.audit import Sizes

Place = tuple[str, int]
"""A number: its name, and its place in a tuple (-1: the value itself)."""
Group = tuple[Place, ...]
"""Numbers that are made smaller together."""
PHASES = (
    (2, "batch", False),
    (8, "inputs", False),
    (16, "any", False),
    (8, "inputs", True),
    (16, "any", True),
    (2, "any", False),
)
"""In order: no number gets smaller than this; which are tried; one by one, or all that have one value together."""
FEW = 256
SAVES = 0.97
"""A smaller number must bring the load below this share of what it was."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What one task may take."""

    data_bytes: int = 16 * 2**20
    """Inputs and outputs together."""
    state_bytes: int = 64 * 2**20
    """Parameters and buffers."""
    moved_bytes: int = 512 * 2**20
    """Read and written by all operators of one forward."""
    flops: int = 2 * 10**9
    """Of one forward."""

    def times(self, factor: float) -> "Budget":
        return Budget(
            data_bytes=int(self.data_bytes * factor),
            state_bytes=int(self.state_bytes * factor),
            moved_bytes=int(self.moved_bytes * factor),
            flops=int(self.flops * factor),
        )


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a task takes at given sizes, found without computing anything."""

    share: float
    """Of the budget, in the dimension that is used most; 1 or less fits."""
    inputs: tuple[tuple[int, ...], ...]
    parameters: tuple[tuple[int, ...], ...]
    outputs: int
    """Elements of all outputs; 0 where forward did not run."""
    ran: bool
    """Whether forward could be run without data; else only inputs and parameters are counted."""


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """A task at sizes that fit."""

    source: str
    scaled: Sizes
    """name -> (own value, value used)."""
    note: str = ""
    doubt: str = ""
    """Why a finding at these sizes need not hold at the task's own; empty where it does."""


class CannotShrink(ValueError):
    """The task does not fit the budget and can't be made to; the text says why."""


def shrink(source: str, name: str, budget: Budget, avoid: frozenset[str] = frozenset()) -> Shrunk:
    """The source at its own sizes where they fit, else at the nearest that do.

    Args:
        avoid: numbers that are made smaller only where no others do.

    Raises:
        CannotShrink: no smaller value of any number brings it into the budget. What the source itself raises when it is
            executed is passed on.
    """
    load, why = measure(source, name, budget)
    if load is None:
        return Shrunk(source=source, scaled={}, note=f"sizes not known beforehand: {why}")
    note = "" if load.ran else f"forward was not sized, only inputs and parameters: {why}"
    if load.share <= 1:
        return Shrunk(source=source, scaled={}, note=note)
    numbers = Numbers(source, name)
    few = min(FEW, load.outputs)
    beyond = False
    for spared, least, (floor, kind, together) in _steps(avoid, few):
        rest = [group for group in numbers.groups(together) if not any(key in spared for key, _ in group)]
        while load.share > 1 and rest:
            best: tuple[Load, Group] | None = None
            for group in rest[:]:
                tried = _try(numbers, group, floor, name, budget)
                saves = tried is not None and tried.share <= SAVES * load.share
                if tried is None or not saves or tried.outputs < least or not _is(kind, load, tried):
                    rest.remove(group)
                elif best is None or tried.share < best[0].share:
                    best = tried, group
            if best:
                beyond |= not _is("batch", load, best[0])
                load = best[0]
                numbers.now.update(numbers.halved(best[1]))
    scaled = numbers.changed()
    if load.share > 1:
        way = (
            "at the smallest sizes at which it still runs" if scaled else "and no module-level number makes it smaller"
        )
        raise CannotShrink(f"it takes {load.share:.3g} times the audit's budget, {way}")
    doubt = "more than the batch was made smaller" if beyond else ""
    if load.outputs < few:
        doubt = f"only {load.outputs} output elements are left"
    return Shrunk(source=numbers.source_at(numbers.now), scaled=scaled, note=note, doubt=doubt)


def _steps(avoid: frozenset[str], few: int) -> Iterator[tuple[frozenset[str], int, tuple[int, str, bool]]]:
    """(numbers that stay, output elements that stay, phase) in the order in which they are tried."""
    ways = dict.fromkeys([(avoid, few), (frozenset[str](), few), (frozenset[str](), 0)])
    for spared, least in ways:
        for phase in PHASES:
            yield spared, least, phase


class Numbers:
    """The whole numbers from 2 on that a source assigns at module level, also those in tuples and lists."""

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        with torch.device("meta"):
            namespace = format.build(source, name=name).namespace
        self._own: dict[str, Any] = {}
        self.now: dict[Place, int] = {}
        for key in sorted(dict(format.assignments(format.parse(source, name))).keys() - {"PROFILES"}):
            value = namespace.get(key)
            for index, part in enumerate(value) if isinstance(value, list | tuple) else [(-1, value)]:
                if isinstance(part, int) and not isinstance(part, bool) and part >= 2:
                    self.now[key, index] = part
                    self._own[key] = value

    def groups(self, together: bool) -> list[Group]:
        """Every number for itself, or all that have the same value now."""
        if not together:
            return [(place,) for place in sorted(self.now)]
        values = sorted(set(self.now.values()))
        found = [tuple(place for place in sorted(self.now) if self.now[place] == value) for value in values]
        return [group for group in found if len(group) > 1]

    def halved(self, group: Group) -> dict[Place, int]:
        return {place: self.now[place] // 2 for place in group}

    def source_at(self, now: dict[Place, int]) -> str:
        """The source with these values; what was computed from a number follows it unless it was changed itself."""
        return format.with_sizes(
            self._source,
            {key: value for key, value in self._values(now).items() if value != self._own[key]},
            self._name,
        )

    def changed(self) -> Sizes:
        """name -> (own value, value now) of all that differ."""
        plain = [values if isinstance(values, int) else list(values) for values in self._own.values()]
        now = [values if isinstance(values, int) else list(values) for values in self._values(self.now).values()]
        return {key: (old, new) for key, old, new in zip(self._own, plain, now, strict=True) if old != new}

    def _values(self, now: dict[Place, int]) -> dict[str, Any]:
        filled = {}
        for key, own in self._own.items():
            if isinstance(own, int):
                filled[key] = now[key, -1]
            else:
                filled[key] = type(own)(now.get((key, index), part) for index, part in enumerate(own))
        return filled


def measure(source: str, name: str, budget: Budget) -> tuple[Load | None, str]:
    """The load at the source's sizes, or None and why it can't be told without data."""
    counter = Counter()
    out: Any = None
    why = ""
    with torch.device("meta"), torch.no_grad():
        try:
            problem = format.build(source, name=name)
            model = problem.model(0)
            args, kwargs = format.init_inputs(problem.inputs(0), name)
        except Exception as error:
            return None, _line(error)
        try:
            with counter:
                out = model(*args, **kwargs)
        except Exception as error:
            why = _line(error)
    state = [*model.parameters(), *model.buffers()]
    inputs = aten_costs.tensors_in([args, kwargs])
    data, held = _bytes([*inputs, *aten_costs.tensors_in(out)]), _bytes(state)
    moved = sum(operator[1] for operator in counter.operators) if not why else 4 * data
    flops = counter.dot_flops + counter.other_flops
    load = Load(
        share=max(
            data / budget.data_bytes,
            held / budget.state_bytes,
            moved / budget.moved_bytes,
            flops / budget.flops,
        ),
        inputs=tuple(tuple(tensor.shape) for tensor in inputs),
        parameters=tuple(tuple(tensor.shape) for tensor in state),
        outputs=sum(tensor.numel() for tensor in aten_costs.tensors_in(out)),
        ran=not why,
    )
    return load, why


def _try(numbers: Numbers, group: Group, floor: int, name: str, budget: Budget) -> Load | None:
    """The load with some numbers halved; None where that is below the floor or the module does not run then."""
    halved = numbers.halved(group)
    if min(halved.values()) < floor:
        return None
    try:
        return measure(numbers.source_at({**numbers.now, **halved}), name, budget)[0]
    except Exception:  # module-level code that insists on its sizes
        return None


def _is(kind: str, before: Load, after: Load) -> bool:
    """Whether a change of one number is of the kind that a phase tries, and nothing stopped running by it."""
    if before.ran and not after.ran:
        return False
    if kind == "any":
        return True
    if before.parameters != after.parameters or len(before.inputs) != len(after.inputs):
        return False
    return kind == "inputs" or all(old[1:] == new[1:] for old, new in zip(before.inputs, after.inputs, strict=True))


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _line(error: Exception) -> str:
    """An error of the task's own code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
