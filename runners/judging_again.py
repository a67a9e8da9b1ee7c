"""Kernels judged anew: what was chosen for being the fastest of many was measured too well on average."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
