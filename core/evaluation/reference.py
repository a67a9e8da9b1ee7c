"""The trusted side's knowledge of a task: modules, secret calls and what they must give.

Runs only in a judge's worker, never near a candidate. Seeds come from os.urandom, fresh for every candidate, so nothing
can be computed ahead. Parameters are perturbed (a bias that starts at zero would hide its omission) and differ from
call to call. Expected values are computed in float64 where the module allows it; the difference to its own precision,
and how far one rounding of the inputs moves them, say how exact an answer can be (tolerance.py). Which calls there are
is in draws.py, which sizes in shapes.py, how much work in work.py.
"""

import copy
import math
import os
import random
from typing import Any

import msgspec
import torch

from core.evaluation import aten_costs, draws, shapes, values, work
from core.evaluation.draws import Draw as Draw
from core.evaluation.draws import Drawn, Plan
from core.evaluation.expected import Built, all_finite, built, forward, odd_count
from core.evaluation.tolerance import Expected as Expected
from core.evaluation.trees import flatten as flatten
from core.evaluation.work import Work as Work
from core.evaluation.work import args_and_kwargs
from core.tasks.format import TaskError

MAX_INPUT_BYTES = 256 * 2**20
"""More than this is not for the interpreter."""
MAX_VARIANTS = 8
"""Hidden shapes that one worker knows of a task; every candidate meets one of them by chance."""
MAX_TRIES = 12


class TooLargeError(TaskError):
    """The task's sizes are beyond the CPU tier."""


class Variant(msgspec.Struct, kw_only=True):
    """The task at one choice of sizes."""

    number: int
    """0: the judged profile."""
    sizes: dict[str, int]
    """The constants that differ from the judged profile."""
    namespace: dict[str, Any]
    work: Work


SMALL_BYTES = 2**20


class Reference:
    """One task at one profile; made once per task and worker, holds no secrets between candidates."""

    def __init__(self, source: str, name: str, profile: str) -> None:
        self.name, self.profile = name, profile
        self._source = source
        self.namespace = shapes.namespace_with(source, name, profile, {})
        self._full: Work | None = None
        counted = None if self._is_small() else self._count_on_meta(self.namespace)
        if counted is not None and counted.work.compulsory_bytes > MAX_INPUT_BYTES:
            size = counted.work.compulsory_bytes / 2**20
            raise TooLargeError(f"task {name} moves {size:.0f} MiB at profile {profile!r}: too much for the CPU tier")
        self._device = "cpu" if counted is None else "meta"
        self.modes = self._usable_modes()
        self._counted = counted or work.count(self.namespace, name, "cpu")
        self.work: Work = self._counted.work
        outputs = self._counted.outputs
        if not self.work.compulsory_bytes or (outputs and not any(map(math.prod, outputs))):
            raise TaskError(f"task {name}: its outputs have no elements, nothing can be compared")
        self._judged = Variant(number=0, sizes={}, namespace=self.namespace, work=self.work)
        self._sizes = shapes.sizes_of(source, name, profile)
        self._batch_like: frozenset[str] | None = None
        self._hidden: list[Variant] = []
        self._tries = 0

    # --- building ---

    def init_inputs(self) -> list[Any]:
        """[args, kwargs] of the constructor."""
        return args_and_kwargs(self.namespace["get_init_inputs"](), self.name)

    def build(self, seed: int) -> tuple[torch.nn.Module, list[Any]]:
        """A Model with fresh parameters, and the init inputs that made it."""
        return self._build(self.namespace, seed)

    def _build(self, namespace: dict[str, Any], seed: int) -> tuple[torch.nn.Module, list[Any]]:
        torch.default_generator.manual_seed(seed)
        init = args_and_kwargs(namespace["get_init_inputs"](), self.name)
        model = namespace["Model"](*copy.deepcopy(init[0]), **copy.deepcopy(init[1]))
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"task {self.name}: Model is a {type(model).__name__}, not a torch.nn.Module")
        return model, init

    def _built(self, variant: Variant) -> Built:
        model, init = self._build(variant.namespace, _seed())
        return built(model, init)

    def _inputs(self, namespace: dict[str, Any]) -> list[Any]:
        torch.default_generator.manual_seed(_seed())
        return args_and_kwargs(namespace["get_inputs"](), self.name)

    def _usable_modes(self) -> list[bool]:
        """Values of `training` under which the reference gives the same output twice."""
        usable = []
        model, _ = self.build(_seed())
        inputs = self._inputs(self.namespace)
        for training in (True, False):
            outputs = []
            for _ in range(2):
                torch.default_generator.manual_seed(_seed())
                outputs.append(forward(copy.deepcopy(model), inputs, training))
            first, second = (flatten(output)[1] for output in outputs)
            if all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)):
                usable.append(training)
        if not usable:
            raise TaskError(f"task {self.name}: Model gives another output at every call, nothing can be compared")
        return usable

    def _is_small(self) -> bool:
        """Whether running the module costs less than asking torch what shapes it would give."""
        try:
            return work.held_bytes(self.namespace, self.name) <= SMALL_BYTES
        except Exception:  # the module can't do without data, or not at all: it is run
            return False

    # --- hidden sizes ---

    def _batch_like_sizes(self) -> frozenset[str]:
        """The constants that count rows which the reference treats one by one (shapes.py)."""
        if self._batch_like is None:
            found = set()
            model, _ = self.build(_seed())
            inputs = self._inputs(self.namespace)
            for size in self._sizes:
                other = size.judged + max(1, min(size.declared))
                try:
                    changed = {size.name: other}
                    namespace = shapes.namespace_with(self._source, self.name, self.profile, changed)
                    counted = work.count(namespace, self.name, self._device)
                    batched = shapes.batched_inputs(self._counted, counted, size.judged, other)
                    if batched is not None and all(
                        shapes.rows_are_independent(
                            lambda given, mode=training: forward(copy.deepcopy(model), given, mode),  # type: ignore[misc]
                            inputs,
                            batched,
                        )
                        for training in self.modes
                    ):
                        found.add(size.name)
                except Exception:  # the task's own code; it does not bear this size
                    continue
            self._batch_like = frozenset(found)
        return self._batch_like

    def hidden(self, rng: random.Random) -> Variant | None:
        """The task at other sizes that are known to run, chosen by `rng`; None where there are none."""
        if len(self._hidden) < MAX_VARIANTS and self._tries < MAX_TRIES:
            self._tries += 1
            sizes = shapes.draw_sizes(rng, self._sizes, self._batch_like_sizes())
            if sizes and any(known.sizes == sizes for known in self._hidden):
                return rng.choice(self._hidden)
            for chosen in (sizes, *({key: value} for key, value in sizes.items() if len(sizes) > 1)):
                if chosen and (variant := self._variant(chosen)) is not None:
                    self._hidden.append(variant)
                    break
            else:
                self._tries += 3  # most likely none ever runs
        return rng.choice(self._hidden) if self._hidden else None

    def _variant(self, sizes: dict[str, int]) -> Variant | None:
        """The task at these sizes, when it runs there, gives outputs of known shapes and does not cost too much."""
        try:
            namespace = shapes.namespace_with(self._source, self.name, self.profile, sizes)
            counted = work.count(namespace, self.name, self._device)
        except Exception:  # the task's own code; it does not bear these sizes
            return None
        moved = counted.work.compulsory_bytes
        if moved > max(shapes.SMALL_BYTES, shapes.MAX_GROWTH * self.work.compulsory_bytes):
            return None
        return Variant(number=self._tries, sizes=sizes, namespace=namespace, work=counted.work)

    # --- draws ---

    def draws(self, count: int) -> Drawn:
        """`count` calls with secret values, modes, sizes and order."""
        rng = random.Random(_seed())
        generator = torch.Generator().manual_seed(_seed())
        judged = self._built(self._judged)
        variant = self.hidden(rng) if count > 2 else None
        hidden = self._runs(variant) if variant is not None else None
        found: list[Draw] = []
        for planned in draws.plan(rng, count, self.modes, hidden is not None):
            if planned.repeats is not None:
                found.append(
                    msgspec.structs.replace(
                        found[planned.repeats], role="repeated", repeats=planned.repeats, same_places=False
                    )
                )
            elif planned.role == "hidden" and hidden is not None and variant is not None:
                found.append(self._draw(variant, hidden, planned, generator))
            else:
                found.append(self._draw(self._judged, judged, planned, generator))
        return Drawn(draws=found, init=judged.init, required=judged.required)

    def _runs(self, variant: Variant) -> Built | None:
        """The module at hidden sizes, when it really runs there; else that choice is dropped."""
        try:
            candidate = self._built(variant)
            forward(candidate.model, self._inputs(variant.namespace), self.modes[0])
        except Exception:  # the task's own code
            self._hidden.remove(variant)
            return None
        return candidate

    def _draw(self, variant: Variant, built: Built, planned: Plan, generator: torch.Generator) -> Draw:
        state = draws.perturbed(built.base, built.parameters, generator)
        base = self._inputs(variant.namespace)
        plain: Expected | None = None
        for kind in (*planned.kinds, "plain"):
            inputs = draws.transformed(base, kind, generator)
            try:
                expected = built.expect(state, inputs, planned.training, generator)
            except Exception:  # the task's own code on values that it did not make
                if kind == "plain":
                    raise
                continue
            if kind == "plain" or all_finite(expected):
                break
            plain = plain or built.expect(state, base, planned.training, generator)
            if odd_count(expected) <= odd_count(plain):
                break
        return Draw(
            inputs=inputs,
            init=built.init,
            variant=variant.number,
            required=built.required,
            state=state,
            plain=built.plain,
            training=planned.training,
            grad=planned.grad,
            same_places=planned.same_places,
            role=planned.role,
            kind=kind,
            work_ratio=variant.work.compulsory_bytes / max(1, self.work.compulsory_bytes),
            expected=expected,
        )

    # --- cost ---

    def full_work(self) -> Work:
        """The work at the `full` profile, from shapes alone; this profile's where that can't be had."""
        if self._full is None:
            counted = None
            if self.profile != "full":
                counted = self._count_on_meta(shapes.namespace_with(self._source, self.name, "full", {}))
            self._full = counted.work if counted is not None else self.work
        return self._full

    def _count_on_meta(self, namespace: dict[str, Any]) -> work.Counted | None:
        """None says that the module can't run without data."""
        try:
            return work.count(namespace, self.name, "meta")
        except Exception:
            return None


def _seed() -> int:
    return int.from_bytes(os.urandom(7), "little")


def mutates_inputs(reference: Reference) -> bool:
    """Whether the reference itself changes its inputs; then a candidate may too."""
    model, _ = reference.build(_seed())
    args, kwargs = reference._inputs(reference.namespace)
    before = [values.raw_bytes(tensor) for tensor in aten_costs.tensors_in([args, kwargs])]
    with torch.no_grad():
        model.train(reference.modes[0])(*args, **kwargs)
    return before != [values.raw_bytes(tensor) for tensor in aten_costs.tensors_in([args, kwargs])]
