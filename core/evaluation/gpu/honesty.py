"""The GPU tier's honesty check: the orders to the candidate's child, in the sequence that gpu.work's rules want.

    honesty = Honesty(device)                    one per stage
    honesty.arrange(child, backend)              after `start`, before `import`
    honesty.imported(child, wall_s)              after `import`: compilers' time was apart
    honesty.renew_memory(child, task)            before each judged `call`
    finding = honesty.after(...)                 after the clocks, last of all: a ghost run may leave a broken context
    honesty.lines(source, backend)               for feedback, where the run wants it

Where events around a candidate's own launches, and the parent's clock, leave no doubt, no profile is taken (`look`):
the profiler takes seconds to get ready in every fresh process. Else the profile is taken under the lease of the GPU
alone, so that its times are those of the measured calls, and each time on values that the candidate has not seen: an
answer that is remembered by its inputs' values costs less when timed than when it is new, and that is what the parent's
clock shows beside the profile. What is found is looked at again, twice: the quickest of three counts. Eager's own
profile is the reference's, in this process, once for each task. The ghost run comes last and is asked for briefly; a
candidate that raises, dies or hangs in it was simply in need of its kernels.
"""

import contextlib
import os
import random
import time
from typing import Any

import msgspec
import torch

from core.evaluation.findings import Finding
from core.evaluation.gpu import cuda_tools
from core.evaluation.gpu import profile as gpu_profile
from core.evaluation.gpu import work as gpu_work
from core.evaluation.gpu.lease import lease
from core.evaluation.gpu.outputs import Outputs
from core.evaluation.gpu.quiet import Quiet
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.gpu.task import GpuTask
from core.evaluation.gpu.work import Profile, Shares
from core.evaluation.walls import gpu as gpu_walls

REPEATS = 3
LEADS = 24
"""Flushes before a call that is looked at: a millisecond or two in which its launches queue up."""
LOOKS = 4
GHOST_S = 15.0
NAN, ZERO = 0xFF, 0x00
"""Bytes that free memory is filled with. Repeated, the first is NaN in every floating type, -1 in integers, true."""
QUIET_S = 10.0
"""Longest wait for other processes' kernels to end."""


class NoProfileError(Exception):
    """The profiler shows nothing of the reference: our side is at fault."""


class UnbuildableError(Exception):
    """CUDA C++ can't be built here; one line that says what is missing."""


class Honesty:
    """One stage's checks; keeps the latest task's baseline profile and the tools for CUDA C++."""

    def __init__(self, device: str) -> None:
        self._device = device
        os.environ.update(gpu_walls.PROFILER)  # read when this process first profiles
        self._tools: dict[str, Any] | None = None
        self._baseline: tuple[str, Profile] | None = None
        self.quiet: Quiet | None = None
        """Looks out for other processes' kernels."""
        self.mine: Profile | None = None
        """The latest candidate's."""

    def arrange(self, child: GpuZygote, backend: str) -> None:
        """Tell a fresh candidate's child what to watch. Raises UnbuildableError."""
        self.mine = None
        if backend != "cuda":
            child.ask("watch", None)
            return
        if self._tools is None:
            tools = cuda_tools.find(self._device)
            if isinstance(tools, str):
                raise UnbuildableError(tools)
            self._tools = tools
        child.deadline += self._tools["wall_s"]
        child.ask("watch", self._tools)

    def imported(self, child: GpuZygote, wall_s: float) -> None:
        """From here on a candidate has `wall_s`, however long its compilers took."""
        child.within(wall_s)

    def renew_memory(self, child: GpuZygote, task: GpuTask) -> None:
        """NaN into the memory that the child's allocator hands out next."""
        renew_memory(child, task.reference.outputs)

    def after(
        self, task: GpuTask, child: GpuZygote, out: Outputs, source: str, backend: str, places: list[torch.Tensor],
        timed: tuple[float, float] | None = None, profiled: bool = False,
    ) -> Finding | None:  # fmt: skip
        """What is wrong with how a right candidate came to its answers; see `check`. `timed` are the milliseconds of
        its call and of eager's; `profiled` asks for the profile in any case. Raises NoProfileError."""
        runtime_ms = timed[0] if timed is not None else None
        if timed is not None and backend != "cuda" and not profiled:
            shares = self._clear(child, source, timed)
            if shares is not None:
                held_back = ghost_share(task, child, out, places)
                return gpu_work.ghost(*held_back, Profile(busy_ms=0.0, rows=(), launches=shares.launches))
        if self._baseline is None or self._baseline[0] != task.source:
            self._baseline = (task.source, reference_profile(task))
        finding, self.mine = check(task, child, out, self._baseline[1], source, backend, places, runtime_ms)
        return finding

    def _clear(self, child: GpuZygote, source: str, timed: tuple[float, float]) -> Shares | None:
        """What events and the parent's clock say, where that leaves no doubt; looked at again where somebody else's
        kernels may have been in it."""
        for _ in range(REPEATS):
            with lease(self._device, alone=True):
                if self.quiet is not None:
                    self.quiet.wait(QUIET_S)
                shares = look(child)
            if shares is None:
                return None
            if gpu_work.clearly_own(source, shares, timed[1], timed[0]):
                return shares
        return None

    def lines(self, source: str, backend: str) -> str:
        """Two lines of the latest candidate's and the baseline's kernels; empty without a profile."""
        if self.mine is None or self._baseline is None:
            return ""
        return gpu_work.lines(source, backend, self.mine, self._baseline[1])


def renew_memory(child: GpuZygote, outputs: list[torch.Tensor], byte: int = NAN) -> None:
    """As the method, for outputs as `DeviceReference.outputs`, with another byte if wanted."""
    child.ask("poison", [tensor.numel() * tensor.element_size() for tensor in outputs], byte)


def look(child: GpuZygote) -> Shares | None:
    """What the child's events and this process's clock say of a call behind a queue of flushes. Under the lease."""
    try:
        flushes = min(_clock(child, LEADS, -1) for _ in range(LOOKS))
        late = min(_clock(child, LEADS, 0) for _ in range(LOOKS))
        found = [msgspec.convert(child.ask("shares", LEADS, 0), tuple[float, float, int, int]) for _ in range(2)]
    except msgspec.ValidationError:
        return None
    total, own, launches, replays = min(found)
    return Shares(total_ms=total, own_ms=own, launches=launches, replays=replays, late_ms=late - flushes)


def _clock(child: GpuZygote, leads: int, number: int) -> float:
    started = time.perf_counter()
    child.ask("late", leads, number)
    return (time.perf_counter() - started) * 1e3


def profile(
    task: GpuTask, child: GpuZygote, out: Outputs, places: list[torch.Tensor], renewed: bool = True
) -> Profile | Finding:
    """What `child`, whose profiler is ready, runs in a call; `renewed`: on new values. Under the lease."""
    if renewed:
        task.scale_in_place()
    out.choose(places, random.SystemRandom())
    return gpu_work.read(child.ask("profile", LEADS, 0, *out.sample_trees()))


def reference_profile(task: GpuTask) -> Profile:
    """What the task's own module runs in a call, in this process; of a task that comes apart, one part, scaled to the
    whole. Raises NoProfileError."""
    gpu_profile.rows(task.device, lambda: None)
    with lease(task.device, alone=True):
        again, share = task.reference.repeatable(task.values(0))
        busy_us, found, _ = gpu_profile.rows(task.device, again)
        del again
        task.give_back()
    rows = [gpu_work.Row(name, count / share, us / share) for name, count, us in found]
    if not rows:
        raise NoProfileError("the profiler shows no work of the task: run python -m tests.gpu.profiler_in_the_walls")
    return Profile(busy_ms=busy_us / share / 1e3, rows=tuple(rows))


def check(
    task: GpuTask, child: GpuZygote, out: Outputs, baseline: Profile, source: str, backend: str,
    places: list[torch.Tensor], runtime_ms: float | None = None,
) -> tuple[Finding | None, Profile | None]:  # fmt: skip
    """Everything that is asked of a candidate whose outputs are right; its profile for feedback comes along.

    `out` is the candidate's, `places` [MAX_PLACES] flat indices per output, `runtime_ms` the measured time of a call.
    The values of set 0 are others afterwards. Raises ChildFailed when the profiled calls fail; the child may be gone
    after it.
    """
    child.ask("profiler")
    finding, quickest = None, None
    with lease(task.device, alone=True):
        for _ in range(REPEATS):
            mine = profile(task, child, out, places)
            if isinstance(mine, Finding):
                return mine, None
            if quickest is None or mine.busy_ms < quickest.busy_ms:
                quickest = mine
            finding = gpu_work.check(source, backend, quickest, baseline, runtime_ms)
            if finding is None:
                break
    assert quickest is not None
    if finding is None:
        finding = gpu_work.ghost(*ghost_share(task, child, out, places), quickest)
    return finding, quickest


def ghost_share(task: GpuTask, child: GpuZygote, out: Outputs, places: list[torch.Tensor]) -> tuple[float, int]:
    """The share of places that are the same in every output of the ghost run as in the call before (0 when it fails),
    and the launches held back. Where all seems right without the kernels, free memory may just hold the answer, such as
    true everywhere: that must go for memory of zeros too."""
    seed = random.SystemRandom().getrandbits(32)
    with lease(task.device):
        out.choose(places, random.Random(seed))
        child.ask("call", 0, task.reference.training, False)
        before = _values(child, out, places, seed)
    share, held_back = _ghost_run(task, child, out, places, seed, before, NAN)
    if share >= gpu_work.GHOST_SHARE:
        share = min(share, _ghost_run(task, child, out, places, seed, before, ZERO)[0])
    return share, held_back


def _ghost_run(
    task: GpuTask, child: GpuZygote, out: Outputs, places: list[torch.Tensor], seed: int, before: list[torch.Tensor],
    byte: int,
) -> tuple[float, int]:  # fmt: skip
    with contextlib.suppress(ChildFailed, msgspec.ValidationError), lease(task.device):
        child.within(GHOST_S)
        renew_memory(child, task.reference.outputs, byte)
        _, held_back = msgspec.convert(child.ask("ghost", 0, task.reference.training), tuple[Any, int])
        after = _values(child, out, places, seed)
        return min((same_share(*pair) for pair in zip(after, before, strict=True)), default=0.0), held_back
    return 0.0, 0


def _values(child: GpuZygote, out: Outputs, places: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Float64 values of the child's latest output at LOOKS draws of places; the same ones for the same seed. NaN where
    the child wrote none."""
    rng = random.Random(seed)
    looks = []
    for _ in range(LOOKS):
        out.choose(places, rng)
        child.ask("flushes", 1, *out.sample_trees())
        looks.append([rows[0].double() for rows in out.samples(1)])
    return [torch.cat(parts) for parts in zip(*looks, strict=True)]


def same_share(after: torch.Tensor, before: torch.Tensor) -> float:
    """Of the values that were finite before, those that are the same but for rounding.

    Where most are zero (a one-hot, a histogram), places that are zero both times don't count: zeros that an honest
    kernel adds to are right at most places by themselves.
    """
    known = torch.isfinite(before)
    if 2 * int((before == 0).sum()) > int(known.sum()):
        known &= (before != 0) | (after != 0)
    close = (
        (after - before).abs() <= 1e-3 * before.abs() + 1e-6 * before[known].abs().max() if bool(known.any()) else known
    )
    return float((close & known).sum()) / max(1, int(known.sum()))
