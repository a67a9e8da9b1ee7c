"""From a verdict to the turn's score s_t: the shapes of REQUIREMENTS M4, as one pure function.

None means that there is no score: our own trouble, or a tier that can't tell. Such a turn is masked, never scored 0.
Speed enters as the lower end of its confidence interval (`speedup_low`).
"""

from typing import Literal

from core.evaluation.verdict import Verdict

Shape = Literal["graded", "kevin", "milestone", "threshold"]
MILESTONE = 1.05
"""`milestone`: a step for every bar that is beaten by more than 5 %."""


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
    milestone  -1 wrong, 1 right, 2 more than 5 % faster than the baseline, 3 more than 5 % faster than twice as fast
               (CUDA-Agent's steps; it has eager and torch.compile as its two bars, a verdict knows one baseline)
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
            return 1.0 + (speedup > MILESTONE) + (speedup > 2 * MILESTONE)
        case "threshold":
            return float(right and speedup >= threshold)
    raise ValueError(f"unknown reward shape {shape!r}: wanted graded, kevin, milestone or threshold")
