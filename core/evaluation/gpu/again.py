"""Measuring a candidate again where the measurement says more of the moment than of the candidate.

Whoever measures looks out for what disturbs: others' kernels (gpu.quiet), a wall that contradicts the events, blocks
unlike the others (gpu.clock, gpu.timing). What gets past all of that still shows in the end: the interval is wide, or
the GPU was not steady. Such a measurement is made again. What is wide twice is the candidate's own, unless somebody was
in a first call beside it: then once more, with those kept away. Which measurement counts is not a matter of what it
says of the speed: the first that is clear, else the last.
"""

import logging
from collections.abc import Callable

from core.evaluation.findings import Finding
from core.evaluation.gpu import timing

TIMES = 2
"""Measurements of one candidate, at most; one more where first calls may be why."""
MOST_S = 6.0
"""No other one is begun that would not be over by then: nobody else can measure meanwhile."""
_log = logging.getLogger(__name__)
Once = Callable[[bool, bool], tuple[timing.Measured | Finding, list[timing.Block], float]]
"""One measurement, its blocks and the seconds that it took; told whether it is made again, and whether to keep others'
first calls away."""


def until_clear(once: Once, name: str) -> timing.Measured | Finding:
    """The measurement that counts, or what a timed call did wrong; `name` is the task's, for the log."""
    result, blocks, took_s = once(False, False)
    spent_s = took_s
    for number in range(2, TIMES + 2):
        if isinstance(result, Finding) or result.clear or spent_s + took_s > MOST_S:
            break
        last, beside = number > TIMES, any(block.witnessed for block in blocks)
        if last and not beside:
            break
        _log.warning("task %s: measured again, %s", name, _why(result, blocks))
        result, blocks, took_s = once(True, last)
        spent_s += took_s
    return result


def _why(result: timing.Measured, blocks: list[timing.Block]) -> str:
    parts = [f"interval {100 * result.width:.0f} % wide, drift {100 * result.drift:.0f} %"]
    parts.append(f"{100 * result.outliers:.0f} % of calls far off")
    for side in ("candidate", "baseline"):
        mine = [block for block in blocks if block.side == side]
        times = " ".join(f"{timing.median_ms(block):.4g}{'w' * (block.clock == 'wall')}" for block in mine)
        parts.append(f"{'eager' if side == 'baseline' else side} {times} ms")
    return "; ".join(parts)
