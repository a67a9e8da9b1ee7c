"""Kernels of a run judged anew: what was chosen for being the fastest of many was measured too well on average, and a
judge that was mended finds what it missed."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from configs.schema import RunConfig
    from core.evaluation.pool import JudgePool
    from core.evaluation.verdict import Verdict
    from core.record.best import Kernel
    from core.record.best_folder import Row
    from core.tasks.task import Task


async def judged_again(
    pool: "JudgePool", task: "Task", kernels: "Sequence[Kernel]", keys: "Sequence[str]"
) -> "tuple[Kernel, Verdict]":
    """The fastest of those that pass again with its new verdict; where none does, one whose verdict is our own trouble,
    else the first. Raises JudgeError where this machine can't judge any more."""
    import asyncio

    from core.evaluation.pool import JudgeError, JudgeUnfit
    from core.record.best import speed_of

    try:
        verdicts = await asyncio.gather(
            *(pool.judge(task, kernel.source, key) for kernel, key in zip(kernels, keys, strict=True))
        )
    except JudgeUnfit as error:
        raise JudgeError(f"{error}: call this again") from None
    pairs = list(zip(kernels, verdicts, strict=True))
    passed = [pair for pair in pairs if pair[1].kind == "pass"]
    if passed:
        return max(passed, key=lambda pair: speed_of(pair[1]))
    return next((pair for pair in pairs if pair[1].kind == "infra"), pairs[0])


async def judge_each(
    pool: "JudgePool", jobs: "Sequence[tuple[Any, Task, str, str]]", judged: "Callable[[Any, Verdict], None]"
) -> None:
    """Judge (name, task, source, key) of each and call `judged(name, verdict)` as verdicts come; in memory are no more
    of them than workers want. Raises JudgeError where this machine can't judge any more."""
    import asyncio

    from core.evaluation.pool import JudgeError, JudgeUnfit

    waiting = iter(jobs)

    async def work() -> None:
        for name, task, source, key in waiting:
            try:
                judged(name, await pool.judge(task, source, key))
            except JudgeUnfit as error:
                raise JudgeError(f"{error}: call this again") from None

    async with asyncio.TaskGroup() as group:
        for _ in range(2 * pool.workers):
            group.create_task(work())


def tasks_by_id(config: "RunConfig", wanted: Iterable[str], command: str) -> "dict[str, Task]":
    """Those tasks of a run's sources that are wanted. Says how many are no more there; raises UsageError where none
    is."""
    from core.tasks.rows import Refused
    from runners.preflight import tasks_of
    from runners.usage import UsageError

    wanted, refused = list(dict.fromkeys(wanted)), list[Refused]()
    tasks = {task.task_id: task for side in ("train", "heldout") for task in tasks_of(config, side, refused)}
    if gone := [task_id for task_id in wanted if task_id not in tasks]:
        some = ", ".join(gone[:3]) + (", ..." if len(gone) > 3 else "")
        told = f"{len(gone)} of {len(wanted)} tasks with kernels are no more in the run's sources: {some}"
        if len(gone) == len(wanted):
            raise UsageError(f"{told}; put the sources back as they were")
        print(f"kernelmill {command}: {told}: left out", file=sys.stderr)
    return {task_id: tasks[task_id] for task_id in wanted if task_id in tasks}


def judge_of(pool: "JudgePool") -> dict[str, Any]:
    """Whatever decides a verdict or its figures: what was judged with the same may stand."""
    from importlib.metadata import version

    packages = {name: version(name) for name in ("kernelmill", "torch", "triton")}
    return {
        "device_class": pool.settings.device_class,
        "gpu": pool.gpu,
        "packages": packages,
        "code": _code(),
        "settings": pool.settings.identity(),
    }


def _code() -> str:
    """Of the judge as it is here: a judge that was mended since has the same version and is another one."""
    import core.evaluation
    from core.identity import digest

    room = Path(core.evaluation.__path__[0])
    return digest(*(path.read_bytes() for path in sorted(room.rglob("*.py"))), size=8)


def speed_in_words(passed: "Verdict | Row") -> str:
    """`1.43x measured (at least 1.40x), 0.21 ms against 0.3 ms`"""
    if passed.speedup is None:
        return "correct, no speed"
    speed = f"{passed.speedup:.2f}x {passed.speed_kind}"
    if passed.speedup_low is not None and passed.speedup_low < passed.speedup:
        speed += f" (at least {passed.speedup_low:.2f}x)"
    if passed.runtime_ms is not None and passed.baseline_ms is not None:
        speed += f", {passed.runtime_ms:.4g} ms against {passed.baseline_ms:.4g} ms"
    return speed
