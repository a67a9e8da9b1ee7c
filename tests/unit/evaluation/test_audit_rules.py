"""Margins under the judge's rule: 1 or less exactly where the judge finds nothing wrong."""

import pytest
import torch

from core.evaluation import compare
from core.evaluation.audit.rules import Judged, number_margins, others
from core.evaluation.tolerance import Expected, tolerance
from core.tasks.audit import MISS

NAN, INF = float("nan"), float("inf")


def expected(native, exact=None):
    exact = native.double() if exact is None and native.is_floating_point() else native if exact is None else exact
    return Expected(structure=["tensor"], native=[native], exact=[exact], is_double=exact.dtype == torch.float64)


WANTED = {
    "float32": torch.randn(50, generator=torch.Generator().manual_seed(1)),
    "bfloat16": torch.randn(50, generator=torch.Generator().manual_seed(2)).bfloat16(),
    "odd": torch.tensor([1.0, NAN, INF, -INF, 3.0, 0.5]),
    "complex": torch.complex(torch.arange(8.0), torch.ones(8)),
    "whole": torch.arange(9),
    "flags": torch.arange(9) % 2 == 0,
    "empty": torch.zeros(0),
    "scalar": torch.tensor(2.5),
}


@pytest.mark.parametrize("name", WANTED)
def test_a_margin_says_what_the_judge_says(name):
    native = WANTED[name]
    call = expected(native)
    answers = [native, torch.zeros_like(native), torch.ones_like(native), native.flip(0) if native.dim() else native]
    if native.is_floating_point():
        allowed = tolerance(call, 0)
        answers += [(native.double() + factor * allowed).to(native.dtype) for factor in (0.9, 1.1, 40.0)]
        answers += [native.nan_to_num(), torch.full_like(native, NAN), torch.full_like(native, INF)]
    judged = Judged(call, 0)
    for answer in answers:
        assert (judged.margin(answer) <= 1) == (compare.check(call, answer) is None), answer
        assert 0 <= judged.margin(answer) <= MISS
    assert judged.margin(native) == 0


def test_a_margin_is_the_error_in_units_of_what_is_allowed():
    call = expected(WANTED["float32"])
    off = WANTED["float32"].double()
    off[7] += 50 * tolerance(call, 0)[7]
    assert Judged(call, 0).margin(off) == pytest.approx(50)


def test_what_overflows_in_one_precision_only_is_right_in_both():
    call = expected(torch.tensor([INF, 1.0]), torch.tensor([1e30, 1.0], dtype=torch.float64))
    assert Judged(call, 0).margin(torch.tensor([1.0005e30, 1.0])) <= 1
    assert Judged(call, 0).margin(torch.tensor([INF, 1.0])) <= 1
    assert Judged(call, 0).margin(torch.tensor([2e30, 1.0])) == MISS


def test_other_systems_rules_are_allclose():
    right, got = torch.tensor([0.0, 10.0]), torch.tensor([0.005, 10.0])
    found = dict(others(right, got))
    assert found["allclose_1e-2"] == pytest.approx(0.5)
    assert found["allclose_1e-3"] == pytest.approx(5)
    assert found["bf16_2e-2"] == pytest.approx(0.25, rel=1e-2)
    assert dict(others(torch.tensor([1]), torch.tensor([2])))["allclose_1e-4"] == pytest.approx(5000)


@pytest.mark.parametrize(
    ("right", "got"), [(3, 3), (3, 4), (True, False), (2.0, 2.0001), (2.0, 2.01), (NAN, NAN), (0.0, 0.0), (0.0, 1e-9)]
)
def test_returned_numbers_are_judged_as_the_judge_does(right, got):
    call = Expected(structure=["value", right], native=[], exact=[], is_double=False)
    if right == right:  # the judge holds NaN for another number than NaN
        assert (dict(number_margins(right, got))["scaled"] <= 1) == (compare.check(call, got) is None)
    assert set(dict(number_margins(right, got))) >= {"allclose_1e-2", "bf16_1e-2", "scaled"}
