"""The learning rate of a step, as a pure function of the step's number: a resumed run needs no scheduler state."""

import math


def learning_rate(step: int, *, peak: float, warmup_steps: int, schedule: str, total_steps: int = 0) -> float:
    """Learning rate of update number `step` (from 0): linear warm-up over `warmup_steps`, then `constant`, or `linear`
    or `cosine` down to 0 at `total_steps`."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    left = max(0.0, 1.0 - (step - warmup_steps) / (total_steps - warmup_steps))
    if schedule == "linear":
        return peak * left
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * (1.0 - left)))
    raise ValueError(f"unknown schedule {schedule!r}; known: constant, linear, cosine")
