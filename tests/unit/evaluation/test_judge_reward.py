"""Scores by hand, for every shape of M4."""

import msgspec
import pytest

from core.evaluation.reward import highest, score, success
from core.evaluation.verdict import Verdict


def passed(speedup: float | None) -> Verdict:
    return Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speedup=9.0, speedup_low=speedup)


def failed(compiled: bool) -> Verdict:
    return Verdict(candidate_key="k", kind="fail", stage="correctness", category="wrong_value", compiled=compiled)


@pytest.mark.parametrize(
    ("verdict", "graded", "kevin", "milestone", "threshold"),
    [
        (failed(False), 0.0, 0.0, -1.0, 0.0),
        (failed(True), 0.1, 0.0, -1.0, 0.0),
        (passed(None), 0.3, 1.3, 1.0, 1.0),
        (passed(0.5), 0.3, 0.8, 1.0, 0.0),
        (passed(1.0), 0.3, 1.3, 1.0, 1.0),
        (passed(1.04), 0.34, 1.34, 1.0, 1.0),
        (passed(1.5), 0.8, 1.8, 2.0, 1.0),
        (passed(2.0), 1.3, 2.3, 2.0, 1.0),
        (passed(2.2), 1.5, 2.5, 3.0, 1.0),
        (passed(3.0), 2.3, 3.3, 3.0, 1.0),
        (passed(50.0), 2.3, 50.3, 3.0, 1.0),
    ],
)
def test_scores_by_hand(verdict: Verdict, graded: float, kevin: float, milestone: float, threshold: float) -> None:
    assert score(verdict, shape="graded") == pytest.approx(graded)
    assert score(verdict, shape="kevin") == pytest.approx(kevin)
    assert score(verdict, shape="milestone") == pytest.approx(milestone)
    assert score(verdict, shape="threshold") == pytest.approx(threshold)


def test_no_score_where_nothing_can_be_told() -> None:
    for kind in ("infra", "unsupported"):
        for shape in ("graded", "kevin", "milestone", "threshold"):
            assert score(Verdict(candidate_key="k", kind=kind), shape=shape) is None


def test_numbers_are_the_configs() -> None:
    assert score(passed(9.0), compiled=0.2, correct=0.5, speed_cap=1.0) == pytest.approx(1.5)
    assert score(failed(True), compiled=0.2) == pytest.approx(0.2)
    assert score(passed(1.4), shape="threshold", threshold=1.5) == 0.0
    assert score(passed(1.6), shape="threshold", threshold=1.5) == 1.0


@pytest.mark.parametrize(
    ("over", "wanted"),
    [
        ({"eager": 3.0, "compile": 1.04}, 2.0),  # twice as fast as eager is no bar where torch.compile was measured
        ({"eager": 1.1, "compile": 1.06}, 3.0),
        ({"eager": 1.04, "compile": 1.2}, 1.0),
        ({"eager": 1.1, "max-autotune": 1.06}, 3.0),
        ({"eager": 1.1, "compile": 1.06, "max-autotune": 0.9}, 3.0),
        ({"eager": 1.1}, 2.0),
        ({"eager": 2.2}, 3.0),
    ],
)
def test_milestones_are_the_published_ones_where_compile_was_measured(over: dict[str, float], wanted: float) -> None:
    for baseline in over:  # whichever the speedup is over
        verdict = msgspec.structs.replace(passed(over[baseline]), speedups=over)
        if "compile" in over or baseline == "eager":
            assert score(verdict, shape="milestone") == wanted


TWICE, JUST = passed(2.2), passed(1.0)
SHAPES = {
    "graded": {}, "kevin": {}, "milestone": {}, "threshold": {},
    "graded, other numbers": {"correct": 0.5}, "graded, small cap": {"speed_cap": 0.5}, "kevin, other": {"correct": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_success_is_a_kernel_that_is_clearly_faster_and_no_score_is_above_the_highest(name: str) -> None:
    told = {"shape": name.partition(",")[0], **SHAPES[name]}
    bar = success(**told)
    assert score(TWICE, **told) >= bar > score(failed(True), **told)
    assert (score(JUST, **told) >= bar) == (told["shape"] == "threshold")  # which knows nothing above 1
    assert bar <= score(passed(1e6), **told) <= highest(**told)
    if told["shape"] != "kevin":
        assert score(passed(1e6), **told) == highest(**told)


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown reward shape 'cubic'"):
        score(passed(1.0), shape="cubic")  # type: ignore[arg-type]
