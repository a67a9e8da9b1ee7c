"""Correctness on the GPU: which calls a candidate is asked for, and whether each is right.

    set 0 -> new values in set 0's memory, other parameters -> set 1
          -> (tasks with PROFILES) other sizes, in a module of its own

The second call is in a second mode (gradients on, the other value of `training` where the module bears it). A call's
output is copied out when the child stands still, whole or part by part, and compared here. What the call did to its
inputs and buffers is compared too. Raises ChildFailed; what is wrong otherwise is a finding.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from core.evaluation import compare
from core.evaluation.findings import Finding
from core.evaluation.gpu import device_compare
from core.evaluation.gpu import precision as gpu_precision
from core.evaluation.gpu.device_reference import Samples
from core.evaluation.gpu.lease import first_call, lease
from core.evaluation.gpu.outputs import MAX_PLACES, Outputs
from core.evaluation.gpu.spawn import GARBLED, ChildFailed, GpuZygote
from core.evaluation.gpu.task import GpuTask

Phase = Callable[[str], contextlib.AbstractContextManager[None]]
CALLS = ((0, ""), (0, "with new values in place"), (1, "of the second set"))
KNOWN = tuple(note for _, note in CALLS if note)


def construct(zygote: GpuZygote, task: GpuTask) -> None:
    """A module of the child for this task, with its inputs and parameters."""
    zygote.share(task.arena_name, task.arena)
    zygote.settle()
    zygote.ask("construct", task.init_tree())
    zygote.ask("inputs", task.input_trees(), task.reference.mutated, zygote.baseline)
    zygote.ask("state", task.state_trees(), task.reference.built.required)


class Calls:
    """The calls of one candidate on one task."""

    def __init__(
        self, task: GpuTask, child: GpuZygote, out: Outputs, phase: Phase,
        renew_memory: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """`renew_memory` spoils what the child's allocator hands out next, before every call."""
        self.task, self.child, self.out, self._phase = task, child, out, phase
        self._renew_memory = renew_memory
        self.places = [
            torch.randint(0, max(1, t.numel()), (MAX_PLACES,), device=task.device) for t in task.reference.outputs
        ]

    def all(self) -> tuple[list[list[Samples]], Finding | None]:
        """Three calls; samples of both sets for the timed calls, or what is wrong."""
        samples: list[list[Samples]] = []
        modes = self.task.reference.modes
        for number, (which, note) in enumerate(CALLS):
            if number == 1:
                with self._phase("wait"), lease(self.task.device) as held, self.task.yielding(held.aside):
                    self.task.scale_in_place()
                    self.task.renew_state()
            # The last two are those whose samples timed calls are compared with: in the timed mode.
            training, grad = (modes[-1], True) if number == 0 else (modes[0], False)
            found, finding = self.one(which, note, training, grad)
            if finding is not None:
                return [], finding
            samples.append(found)
        return samples[1:], None

    def one(self, which: int, note: str, training: bool, grad: bool) -> tuple[list[Samples], Finding | None]:
        """One call, compared."""
        task, child, reference = self.task, self.child, self.task.reference
        # What was called before does not compile, and can wait until nobody measures.
        with self._phase("call"), first_call(task.device) if note not in KNOWN else lease(task.device):
            child.ask("state", task.state_trees(), reference.built.required)
            if self._renew_memory is not None:
                self._renew_memory()
            structure, kinds = _answer(child.ask("call", which, training, grad))
        finding = self._kinds_differ(structure, kinds) or flags_differ(child, reference.flags)
        if finding is not None:
            return [], finding
        context = ", ".join(part for part in (note, _mode(reference.modes, training, grad)) if part)
        with self._phase("wait"), lease(task.device) as held, reference.yielding(held.pause):
            with self._phase("copy"):
                outputs, effects = self._take(which)
            with self._phase("compare"):
                touched = task.touched()
                if touched is not None:
                    self._let_go(outputs)
                    return [], device_compare.input_changed(touched)
                text = f"Inputs {context}." if context else ""
                finding, samples = reference.check(
                    task.values(which), outputs, self.places, text, training=training, effects=effects
                )
                if reference.mutated:
                    task.refill()
                task.idle()
            task.give_back()
        return samples, finding

    def _take(self, which: int) -> tuple[Any, list[torch.Tensor]]:
        child = self.child
        outputs = self.out.poison()
        child.ask("take", self.out.whole_trees())
        effects = self.task.mutated_inputs(which)
        if self.task.reference.changed_buffers:
            child.ask("buffers", self.out.buffer_trees())
            effects += self.out.buffers()
        child.ask("free")
        return outputs, effects

    @staticmethod
    def _let_go(outputs: Any) -> None:
        if hasattr(outputs, "done"):
            outputs.done()

    def _kinds_differ(self, structure: Any, kinds: list[Any]) -> Finding | None:
        reference = self.task.reference
        wanted = [
            [str(t.dtype).removeprefix("torch."), list(t.shape), torch.device(self.task.device).type]
            for t in reference.outputs
        ]
        problem = _structures_differ(structure, reference.structure)
        if problem is not None:
            return problem
        return None if kinds == wanted else _types_differ(kinds, wanted)


def flags_differ(child: GpuZygote, wanted: gpu_precision.Flags) -> Finding | None:
    """Whether a child's precision switches are other ones than the task's."""
    text = gpu_precision.difference(child.ask("precision"), wanted)
    if not text:
        return None
    detail = "The task's precision holds on both sides: leave torch's switches alone, and convert in the kernel."
    return Finding(stage="correctness", category="tampering", headline=f"it set {text}", detail=detail)


def _mode(modes: list[bool], training: bool, grad: bool) -> str:
    parts = [] if training == modes[0] else ["in eval mode" if not training else "in training mode"]
    return " ".join([*parts, *(["with gradients on"] if grad else [])])


def _answer(answer: Any) -> tuple[Any, list[Any]]:
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[1], list):
        raise ChildFailed("call", error={"type": GARBLED, "message": "its answer is none of ours"})
    return answer[0], answer[1]


def _structures_differ(got: Any, wanted: Any) -> Finding | None:
    """Compare the child's word for its output's nesting with the reference's; what is not a tensor counts too."""
    try:
        if text := compare.structures_differ(got, wanted):
            return Finding(stage="correctness", category="wrong_structure", headline=text)
        problem = compare._values_differ(got, wanted)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError):
        return Finding(stage="correctness", category="tampering", headline="its output's nesting is none of ours")
    return Finding(stage="correctness", category="wrong_value", headline=problem) if problem else None


def _types_differ(got: list[Any], wanted: list[Any]) -> Finding:
    kinds = (("dtype", "wrong_dtype"), ("shape", "wrong_shape"), ("device", "wrong_type"))
    for number, (mine, right) in enumerate(zip(got, wanted, strict=False)):
        if not isinstance(mine, list) or len(mine) != len(right):
            break
        for index, (what, category) in enumerate(kinds):
            if mine[index] != right[index]:
                name = "output" if len(wanted) == 1 else f"output {number}"
                shown = [tuple(part) if isinstance(part, list) else part for part in (mine[index], right[index])]
                text = f"{name} has {what} {str(shown[0])[:60]}, wanted {shown[1]}"
                return Finding(stage="correctness", category=category, headline=text)
    text = f"forward returned {len(got)} tensors, wanted {len(wanted)}"
    return Finding(stage="correctness", category="wrong_structure", headline=text)
