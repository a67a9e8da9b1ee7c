"""Scores by hand, for every shape of M4."""

import pytest

from core.evaluation.reward import score
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


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown reward shape 'cubic'"):
        score(passed(1.0), shape="cubic")  # type: ignore[arg-type]
