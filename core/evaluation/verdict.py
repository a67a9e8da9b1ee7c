"""A verdict: the evaluator's terminal answer for one candidate.

pass         correct as far as this tier can tell, with the speed it found
fail         the candidate is at fault: `stage` says where, `category` what, `feedback` tells the policy
unsupported  this tier can't tell (bfloat16 in the interpreter, say); no score, the sample is masked
infra        our side is at fault and retries are used up; no score, the sample is masked
"""

from typing import Literal

import msgspec

Kind = Literal["pass", "fail", "unsupported", "infra"]
Stage = Literal["", "extract", "static", "load", "compile", "launch", "correctness", "timing"]
"""Where judging ended: no candidate found, source screen, import and construction, compile, run, compare, clock."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data; everything a reward, a prompt or a report needs to know of a judged candidate."""

    candidate_key: str
    kind: Kind
    tier: Literal["static", "cpu", "gpu"] = "cpu"
    stage: Stage = ""
    """Empty for a pass."""
    category: str = ""
    """One word of `core.evaluation.categories`, e.g. `wrong_value`, `timeout`; empty for a pass."""
    compiled: bool = False
    """Cross-compiled for the run's target; where there is none, a kernel launch was reached."""
    correct: bool = False
    feedback: str = ""
    """What the policy is told: bounded, one cause, numbers where there are numbers."""
    speed_kind: Literal["", "modelled", "measured"] = ""
    speedup: float | None = None
    """Baseline time over candidate time."""
    speedup_low: float | None = None
    """Lower end of the confidence interval; this is what a reward uses. Equal to `speedup` when modelled."""
    runtime_ms: float | None = None
    baseline_ms: float | None = None
    wall_s: float = 0.0
    """How long judging took."""
    screens: tuple[str, ...] = ()
    """Findings of the static screen that did not decide the verdict; features for the log."""
    clock: dict[str, float] = {}
    """Of a measured pass, over the timed calls: `calls`, `mean_ms`, `std_ms`, `min_ms`, `max_ms`, and the baseline's
    with `baseline_` before."""
    baseline_trouble: dict[str, str] = {}
    """Baselines of a measured pass that have no time, and why: `compile` does not compile this task, say. It is nothing
    of the candidate's; where the reward's baseline is one of them, `speedup` is over eager."""
    speedups: dict[str, float] = {}
    """Of a measured pass, by baseline (`eager`, `compile`, `max-autotune`), as far as they have a time: lower ends."""
