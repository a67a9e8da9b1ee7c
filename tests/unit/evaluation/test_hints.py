"""The likely cause of wrong values, one planted at a time; and that feedback stays within its budget."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.evaluation import compare
from core.evaluation.findings import COMPACT_CHARS, FULL_CHARS, Finding, feedback_text
from core.evaluation.tolerance import Expected


def wanted(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1


def finding_of(exact: torch.Tensor, got: torch.Tensor) -> Finding:
    expected = Expected(structure=["tensor"], native=[exact.float()], exact=[exact], is_double=True)
    finding = compare.check(expected, got.float())
    assert finding is not None
    return finding


def edited(change: Callable[[torch.Tensor], object], *shape: int) -> str:
    """The feedback when `change` was done to a copy of the right answer."""
    exact = wanted(*shape)
    got = exact.clone()
    result = change(got)  # a new tensor, or a part that was changed in place
    whole = isinstance(result, torch.Tensor) and result.shape == exact.shape
    return feedback_text(finding_of(exact, result if whole else got))  # type: ignore[arg-type]


CASES: list[tuple[str, tuple[int, ...], Callable[[torch.Tensor], object]]] = [
    ("all zeros", (7, 9), lambda x: x.zero_()),
    ("Every element is the same", (7, 9), lambda x: x.fill_(0.25)),
    ("The sign is flipped", (50,), lambda x: x.neg_()),
    ("0.5 times the right ones", (50,), lambda x: x.mul_(0.5)),
    ("transposed", (7, 9), lambda x: x.T.reshape(7, 9)),
    ("transposed", (8, 8), lambda x: x.T.clone()),
    ("result of the row before it", (6, 5), lambda x: x.roll(1, 0)),
    ("result of the row after it", (6, 5), lambda x: x.roll(-1, 0)),
    ("off by one element", (60,), lambda x: x.roll(1)),
    ("reverse order", (60,), lambda x: x.flip(0)),
    ("in the wrong places", (60,), lambda x: x[torch.randperm(60, generator=torch.Generator().manual_seed(5))]),
    ("float16 or TF32", (200,), lambda x: x.half().double()),
    ("bfloat16", (200,), lambda x: x.bfloat16().double()),
    ("Only the first row is right", (6, 5), lambda x: x[1:].add_(x[1:].cos() * 3)),
    ("Only the last row is wrong", (6, 5), lambda x: x[-1:].add_(x[-1:].cos() * 3)),
    ("all from element 768 on, a multiple of 256", (1000,), lambda x: x[768:].add_(x[768:].cos() * 3)),
    ("columns from 64 on are wrong, a multiple of 64", (6, 90), lambda x: x[:, 64:].add_(x[:, 64:].cos() * 3)),
    ("All wrong elements are zero", (1000,), lambda x: x[512:].zero_()),
    ("Only the last element is wrong", (40,), lambda x: x[-1:].add_(2)),
    ("Every element is off by 0.75", (40,), lambda x: x.add_(0.75)),
    ("Every element is off by 0.01", (200,), lambda x: x.add_(0.01)),
    ("Every element is off by -0.001", (20, 30), lambda x: x.sub_(0.001)),
    ("a term per column (a bias?)", (40, 6), lambda x: x.add_(0.01 * wanted(6, seed=3))),
    ("a term per row", (8, 40), lambda x: x.add_(0.002 * wanted(8, 1, seed=3))),
    ("a term per channel", (3, 4, 6, 5), lambda x: x.add_(0.01 * wanted(4, 1, 1, seed=3))),
    ("bfloat16", (100, 2), lambda x: x.bfloat16().double()),
    ("a term per column (a bias?)", (8, 6), lambda x: x.add_(wanted(6, seed=3))),
    ("a term per row", (8, 6), lambda x: x.add_(wanted(8, 1, seed=3))),
    ("a term per channel", (3, 4, 6, 5), lambda x: x.add_(wanted(4, 1, 1, seed=3))),
]


@pytest.mark.parametrize(("text", "shape", "change"), CASES, ids=[case[0] for case in CASES])
def test_the_pattern_is_named(text: str, shape: tuple[int, ...], change: Callable[[torch.Tensor], object]) -> None:
    assert text in edited(change, *shape)


def test_rows_that_should_sum_to_one() -> None:
    exact = torch.softmax(wanted(6, 40), 1)
    odd = exact * torch.linspace(1.1, 1.5, 6, dtype=torch.float64)[:, None]
    assert "Sums over dimension 1 should be 1; one is 1.5" in feedback_text(finding_of(exact, odd))


def test_unwritten_memory_is_named_with_its_block() -> None:
    def unwritten(x: torch.Tensor) -> None:
        x[512:] = torch.nan

    text = edited(unwritten, 1000)
    assert text.startswith("non_finite: output[512] = nan, wanted ")
    assert "488 of 1,000 elements are wrong, all from element 512 on, a multiple of 512" in text
    assert "NaN where no kernel wrote" in text


def test_noise_has_no_pattern() -> None:
    text = edited(lambda x: x.add_(wanted(20, 30, seed=9)), 20, 30)
    assert text.splitlines()[1].endswith("at most.")


@given(
    st.lists(st.integers(1, 9), max_size=4).filter(lambda shape: len(shape) > 0),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 1e-3, 1.0, 1e30, float("inf"), float("nan")]),
    st.floats(0, 1),
    st.sampled_from([1e-30, 1.0, 1e30]),
)
@settings(max_examples=150, deadline=None)
def test_any_wrong_output_gets_bounded_feedback(
    shape: list[int], seed: int, error: float, share: float, scale: float
) -> None:
    exact = wanted(*shape, seed=seed) * scale
    got = exact.clone()
    where = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    got[where] = got[where] * 1.5 + error * scale
    expected = Expected(structure=["tensor"], native=[exact.float()], exact=[exact], is_double=True)
    finding = compare.check(expected, got.float(), "Call 2 (on small inputs) differs; earlier calls were right")
    assert (finding is not None) == bool(where.any())
    if finding is not None:
        assert len(feedback_text(finding)) <= FULL_CHARS
        assert len(feedback_text(finding, "compact")) <= COMPACT_CHARS
        assert len(feedback_text(finding, limit=200, line_limit=70)) <= 200
