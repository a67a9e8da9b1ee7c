"""From a verdict to the turn's score s_t: the shapes of REQUIREMENTS M4, as one pure function.

None means that there is no score: our own trouble, or a tier that can't tell. Such a turn is masked, never scored 0.
Speed enters as the lower end of its confidence interval (`speedup_low`).
"""

from typing import Literal

from core.evaluation.verdict import Verdict

Shape = Literal["graded", "kevin", "milestone", "threshold"]
MILESTONE = 1.05
"""`milestone`: a step for every bar that is beaten by more than 5 %."""
COMPILED = ("compile", "max-autotune")
"""Its second bar, where the verdict has one of these; the first one counts."""


def score(
    verdict: Verdict,
    *,
    shape: Shape = "graded",
    compiled: float = 0.1,
    correct: float = 0.3,
    speed_cap: float = 2.0,
    threshold: float = 1.0,
) -> float | None:
    """The score of a verdict, or None where there is none.

    graded     `compiled` if it compiles; `correct` + clip(speedup - 1, 0, speed_cap) if right (TritonForge): 0 to 2.3
    kevin      0.3 + speedup if right, else 0 (Kevin-32B)
    milestone  -1 wrong, 1 right, 2 more than 5 % faster than eager, 3 than torch.compile as well (CUDA-Agent). Where no
               compiled baseline was measured: 2 than the baseline, 3 more than 5 % faster than twice as fast
    threshold  1 if right and speedup >= `threshold`, else 0
    A right kernel without a speed (speed = "none") counts as exactly as fast as the baseline.
    """
    if verdict.kind in ("infra", "unsupported"):
        return None
    right = verdict.kind == "pass" and verdict.correct
    speedup = 1.0 if verdict.speedup_low is None else verdict.speedup_low
    match shape:
        case "graded":
            if right:
                return correct + min(max(speedup - 1.0, 0.0), speed_cap)
            return compiled if verdict.compiled else 0.0
        case "kevin":
            return correct + speedup if right else 0.0
        case "milestone":
            if not right:
                return -1.0
            return 1.0 + _milestones(verdict, speedup)
        case "threshold":
            return float(right and speedup >= threshold)
    raise ValueError(f"unknown reward shape {shape!r}: wanted graded, kevin, milestone or threshold")


def _milestones(verdict: Verdict, speedup: float) -> int:
    """How many of the two bars a right kernel beats."""
    over = verdict.speedups
    compiled = next((over[name] for name in COMPILED if name in over), None)
    if compiled is None:
        return (speedup > MILESTONE) + (speedup > 2 * MILESTONE)
    faster = over.get("eager", speedup) > MILESTONE
    return faster + (faster and compiled > MILESTONE)


def highest(*, shape: Shape, compiled: float = 0.1, correct: float = 0.3, speed_cap: float = 2.0, **_: float) -> float:
    """No kernel scores more; the arguments are those of `score`."""
    match shape:
        case "graded":
            return max(0.0, compiled, correct + speed_cap)
        case "kevin":
            return float("inf")
        case "milestone":
            return 3.0
    return 1.0


def success(*, shape: Shape, correct: float = 0.3, speed_cap: float = 2.0, **_: float) -> float:
    """What a right kernel scores that is clearly faster, so that an episode may end with it: twice as fast where the
    score grows with speed, the last step where it goes by steps. The arguments are those of `score`."""
    match shape:
        case "graded":
            return correct + min(1.0, speed_cap)
        case "kevin":
            return correct + 2.0
        case "milestone":
            return 3.0
    return 1.0
