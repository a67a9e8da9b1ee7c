"""Sizes that a candidate was never told, on the GPU: one more call, in a module of its own, for tasks with PROFILES.

What may vary and how is in shapes.py. Only for tasks whose tensors are small (`CHEAP_BYTES`): there it costs some
milliseconds. Sizes are tried on the CPU first, since an index out of range there is an exception, and on the GPU the
end of this process's context.
"""

import contextlib
import random
from collections.abc import Iterator

from core.evaluation import shapes
from core.evaluation.findings import Finding
from core.evaluation.gpu.correct import Calls, Phase, construct
from core.evaluation.gpu.device_reference import DeviceReference
from core.evaluation.gpu.lease import lease
from core.evaluation.gpu.outputs import Outputs
from core.evaluation.gpu.spawn import GpuZygote
from core.evaluation.gpu.task import GpuTask

CHEAP_BYTES = 2**25
"""Inputs, parameters and outputs at the judged sizes."""
MOST_TRIES = 8


class HiddenSizes:
    """Of one task; `check` is asked once per candidate."""

    def __init__(self, task: GpuTask, profile: str) -> None:
        self._task, self._profile = task, profile
        self._sizes = [size for size in shapes.sizes_of(task.source, task.name, profile) if size.has_profiles]
        self._rng = random.SystemRandom()
        self._known: list[dict[str, int]] = []
        self._tries = 0

    def draw(self) -> dict[str, int] | None:
        """Other sizes that are known to run; None where there are none."""
        if not self._sizes or self._task.needs.total > CHEAP_BYTES:
            return None
        while self._tries < MOST_TRIES:
            self._tries += 1
            chosen = shapes.draw_sizes(self._rng, self._sizes, frozenset())
            if not chosen or chosen in self._known:
                break
            if self._runs(chosen):
                self._known.append(chosen)
                break
        return self._rng.choice(self._known) if self._known else None

    def _runs(self, sizes: dict[str, int]) -> bool:
        task = self._task
        try:
            reference = DeviceReference(task.source, task.name, self._profile, "cpu", sizes=sizes)
            reference.learn(reference.inputs(self._rng.getrandbits(40)))
        except Exception:  # the task's own code; it does not bear these sizes
            return False
        largest = sum(tensor.numel() * tensor.element_size() for tensor in reference.outputs)
        return largest <= shapes.MAX_GROWTH * max(task.needs.outputs, shapes.SMALL_BYTES)

    def check(self, child: GpuZygote, phase: Phase) -> Finding | None:
        """One call at other sizes; the child has its first module again afterwards. Raises ChildFailed."""
        sizes = self.draw()
        if sizes is None:
            return None
        task = self._task
        with contextlib.ExitStack() as stack:
            with phase("wait"), lease(task.device) as held:
                hidden = GpuTask(
                    task.source, task.name, self._profile, task.device, sizes=sizes, arena_name="hidden",
                    aside=held.aside,
                )  # fmt: skip
            stack.callback(hidden.close)
            buffers = {name: hidden.reference.built.base[name] for name in hidden.reference.changed_buffers}
            out = Outputs(task.device, hidden.reference.outputs, buffers=buffers, name="hidden out")
            stack.callback(out.close)
            with _variant(child, 1):
                construct(child, hidden)
                child.share("hidden out", out.arena)
                child.settle()
                calls = Calls(hidden, child, out, phase)
                told = ", ".join(f"{name}={value}" for name, value in sorted(sizes.items()))
                return calls.one(0, f"at other sizes ({told})", hidden.reference.training, False)[1]


@contextlib.contextmanager
def _variant(child: GpuZygote, number: int) -> Iterator[None]:
    child.ask("variant", number)
    yield
    child.ask("variant", 0)
