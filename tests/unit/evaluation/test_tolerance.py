"""What is close enough: float32 kernels of any summation order are, lower precision and constants are not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.evaluation import compare
from core.evaluation.expected import Built, built, forward
from core.evaluation.tolerance import Expected, bound, scale_of, surely_close, surviving, surviving_each

SEEDS = st.integers(0, 2**31)


class Function(torch.nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)  # type: ignore[operator]


FUNCTIONS = {
    "matmul": (lambda x: x[:24] @ x[24:].T, (48, 96)),
    "softmax": (lambda x: torch.softmax(x, -1), (8, 200)),
    "row sums": (lambda x: x.sum(-1), (16, 300)),
    "means with an offset": (lambda x: (x + 3).mean(-1), (16, 300)),
    "elementwise": (lambda x: torch.tanh(x) * x + 1, (1000,)),
    "variance": (lambda x: x.var(-1), (16, 300)),
    "exponentials": (lambda x: torch.exp(3 * x), (1000,)),
    "one number": (lambda x: x.square().mean(), (1500,)),
    "two numbers": (lambda x: (x.mean(), (x - 0.1).abs().mean()), (1500,)),
}


def expect(name: str, seed: int) -> tuple[Built, Expected, torch.Tensor]:
    function, shape = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    made = built(Function(function), [[], {}])
    return made, made.expect({}, [[x], {}], False, generator), x


def outcome(made: Built, expected: Expected, x: torch.Tensor) -> bool:
    """Whether the module's answer for `x` is accepted."""
    return compare.check(expected, forward(made.model, [[x], {}], False)) is None


@pytest.mark.parametrize("name", FUNCTIONS)
@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_lower_precision_is_seen(name: str, seed: int) -> None:
    accepted = {"bfloat16": 0, "float16": 0, "tf32": 0}
    # The errors of 300 or 1,500 terms may cancel in few numbers, not in many calls.
    calls = 8 if "number" in name else 4 if name == "means with an offset" else 1
    for call in range(calls):
        made, expected, x = expect(name, seed + call)
        assert outcome(made, expected, x)
        accepted["bfloat16"] += outcome(made, expected, x.bfloat16().float())
        accepted["float16"] += outcome(made, expected, x.half().float())
        tf32 = (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)
        accepted["tf32"] += outcome(made, expected, tf32)
    assert max(accepted.values()) < calls, accepted


@pytest.mark.parametrize("name", FUNCTIONS)
@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_one_rounding_of_the_inputs_is_accepted(name: str, seed: int) -> None:
    made, expected, x = expect(name, seed)
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    assert outcome(made, expected, x * (1 + 2.0**-23 * signs))


@given(SEEDS, st.sampled_from([64, 1000, 16384, 200_000]), st.sampled_from([0.0, 1.0, 100.0]))
@settings(max_examples=25, deadline=None)
def test_any_order_of_summation_is_accepted(seed: int, terms: int, offset: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((4, terms), generator=generator) + offset
    made = built(Function(lambda x: x.sum(-1)), [[], {}])
    expected = made.expect({}, [[x], {}], False, generator)
    serial = x.reshape(4, -1, 8).cumsum(1)[:, -1].sum(-1)  # eight lanes, each one after another
    shuffled = x[:, torch.randperm(terms, generator=generator)].reshape(4, -1, 8).sum(1).sum(-1)
    for got in (serial, shuffled, x.flip(-1).reshape(4, 8, -1).sum(-1).cumsum(-1)[:, -1]):
        assert compare.check(expected, got) is None


@pytest.mark.parametrize("name", FUNCTIONS)
@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_answers_that_ignore_the_input_fail(name: str, seed: int) -> None:
    # Two means of 1,500 squares agree in one call of thousands, not in all of several.
    accepted = 0
    for call in range(3):
        made, expected, x = expect(name, seed + call)
        generator = torch.Generator().manual_seed(seed + call + 100)
        accepted += outcome(made, expected, torch.randn(x.shape, generator=generator))
    assert accepted <= ("number" in name)
    native = expected.native if len(expected.native) > 1 else expected.native[0]
    structure = tuple(torch.zeros_like(part) for part in native) if isinstance(native, list) else native * 0
    assert compare.check(expected, structure) is not None
    if isinstance(native, torch.Tensor) and native.numel() > 1:
        assert compare.check(expected, torch.full_like(native, float(native.mean()))) is not None


@given(SEEDS, st.sampled_from([1e-42, 1e-37, 1e-30, 1e-12, 1.0, 1e12, 1e30, 1e37]), st.integers(2, 60))
@settings(max_examples=60, deadline=None)
def test_scale_does_not_matter(seed: int, scale: float, count: int) -> None:
    exact = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale
    native = exact.float()
    expected = Expected(structure=["tensor"], native=[native], exact=[exact], is_double=True)
    assert compare.check(expected, native) is None
    assert torch.isfinite(bound(native, exact, True)).all()
    if scale > 1e-33:
        assert compare.check(expected, torch.zeros(count)) is not None
        assert compare.check(expected, native * 1.001) is not None


@given(SEEDS, st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_one_wrong_row_is_wrong(seed: int, rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn((rows, columns), dtype=torch.float64, generator=generator)
    expected = Expected(structure=["tensor"], native=[exact.float()], exact=[exact], is_double=True)
    got = exact.float()
    got[seed % rows] += 0.01
    assert compare.check(expected, got) is not None


def test_a_cancelling_reference_widens_the_bound() -> None:
    x = torch.rand(500, generator=torch.Generator().manual_seed(1))
    made = built(Function(lambda x: (x + 1e4) - 1e4), [[], {}])
    expected = made.expect({}, [[x], {}], False, torch.Generator().manual_seed(2))
    assert compare.check(expected, x) is None
    assert compare.check(expected, (x + 1e4) - 1e4) is None
    assert compare.check(expected, torch.full_like(x, 0.5)) is not None


def test_a_tie_may_fall_either_way_and_nothing_else_may() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 2.5, 0.5])
    near = x.clone()
    near[1] = torch.nextafter(x[2], torch.tensor(0.0))
    made = built(Function(lambda x: x.argmax()), [[], {}])
    seen = set()
    for seed in range(40):
        expected = made.expect({}, [[near], {}], False, torch.Generator().manual_seed(seed))
        assert compare.check(expected, torch.tensor(2)) is None
        assert compare.check(expected, torch.tensor(3)) is not None
        seen.add(compare.check(expected, torch.tensor(1)) is None)
    assert True in seen
    clear = made.expect({}, [[x], {}], False, torch.Generator().manual_seed(0))
    assert compare.check(clear, torch.tensor(1)) is not None


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5)])
def test_empty_outputs(shape: tuple[int, ...]) -> None:
    made = built(Function(lambda x: x * 2), [[], {}])
    expected = made.expect({}, [[torch.zeros(shape)], {}], False, torch.Generator())
    assert compare.check(expected, torch.zeros(shape)) is None
    assert compare.check(expected, torch.zeros((1, *shape))) is not None
    assert surviving(expected, torch.zeros(shape)) == 0.0


def test_complex_outputs_are_compared_by_parts() -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(3))
    made = built(Function(lambda x: torch.fft.fft(x)), [[], {}])
    expected = made.expect({}, [[x], {}], False, torch.Generator())
    right = torch.fft.fft(x)
    assert compare.check(expected, right) is None
    assert compare.check(expected, right.conj().resolve_conj()) is not None
    finding = compare.check(expected, right.real.to(torch.complex64))
    assert finding is not None and finding.headline.endswith("i")


def test_low_precision_outputs() -> None:
    x = torch.randn(500, generator=torch.Generator().manual_seed(4))
    for dtype, coarse in ((torch.float16, 2e-2), (torch.bfloat16, 8e-2)):
        made = built(Function(lambda x: torch.sin(x) * 2), [[], {}])
        expected = made.expect({}, [[x.to(dtype)], {}], False, torch.Generator())
        assert expected.is_double
        assert compare.check(expected, (torch.sin(x.to(dtype).float()) * 2).to(dtype)) is None
        assert compare.check(expected, (torch.sin(x.to(dtype).float()) * 2 * (1 + coarse)).to(dtype)) is not None


def test_overflow_of_the_tasks_own_precision_is_no_demand() -> None:
    exact = torch.tensor([1e39, 1.0], dtype=torch.float64)
    expected = Expected(structure=["tensor"], native=[torch.tensor([math.inf, 1.0])], exact=[exact], is_double=True)
    assert compare.check(expected, torch.tensor([math.inf, 1.0])) is None
    assert compare.check(expected, torch.tensor([math.nan, 1.0])) is not None
    exact[0] = 1e6
    assert compare.check(expected, torch.tensor([1e6, 1.0])) is None
    assert compare.check(expected, torch.tensor([math.nan, 1.0])) is None
    assert compare.check(expected, torch.tensor([2e6, 1.0])) is not None


@given(SEEDS, st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_surviving_counts_right_elements(seed: int, kept: int) -> None:
    exact = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = Expected(
        structure=["sequence", [["tensor"], ["tensor"]]],
        native=[exact.float(), exact.float()],
        exact=[exact, exact],
        is_double=True,
    )
    got = exact.float()
    got[kept:] = math.nan
    assert surviving_each(expected, [got, got[:50]]) == [pytest.approx(kept / 100), 0.0]
    assert surviving(expected, [got, exact.float()]) == 1.0


@pytest.mark.parametrize("fill", [-1e9, -1e4, 1e30])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_value_that_fills_places_does_not_excuse_the_others(fill: float, share: float) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(400, generator=generator, dtype=torch.float64)
    filled = torch.rand(400, generator=generator) < share
    exact = torch.where(filled, fill, values)
    expected = Expected(structure=["tensor"], native=[exact.float()], exact=[exact], is_double=True)
    assert scale_of(exact)[2] < 2.0
    assert compare.check(expected, exact.float()) is None
    assert compare.check(expected, torch.where(filled, fill, values * 1.001).float()) is not None
    assert compare.check(expected, torch.where(filled, fill * 1.01, values).float()) is not None


def test_what_repeats_near_the_others_counts() -> None:
    generator = torch.Generator().manual_seed(3)
    for values in (
        torch.randn(400, generator=generator).clamp(-1, 1),
        torch.randn(400, generator=generator).sign(),
        (torch.rand(400, generator=generator) < 0.1).float(),
        torch.full((400,), 3.0),
    ):
        centre, _, spread = scale_of(values.double())
        assert centre == pytest.approx(float(values.double().mean()))
        assert spread >= 0.99 * float((values.double() - centre).square().mean().sqrt())


@given(
    SEEDS, st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.floats(-7.0, 1.0), st.floats(-3.0, 3.0),
    st.sampled_from([None, math.nan, math.inf, -math.inf]), st.booleans(),
)  # fmt: skip
def test_the_short_way_accepts_nothing_that_the_bound_refuses(seed, dtype, error, offset, odd, odd_wanted) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(400, generator=generator, dtype=torch.float64) + offset
    scale = scale_of(exact)
    native = exact.to(dtype)
    got = (exact + 10**error * torch.randn(400, generator=generator, dtype=torch.float64)).to(dtype)
    if odd is not None:
        (exact if odd_wanted else got)[17] = odd
    if surely_close(got, exact, dtype, scale[2]):
        assert bool(((got.double() - exact).abs() <= bound(native, exact, True, scale=scale)).all())
    if error < -6 and dtype == torch.float32 and odd is None:
        assert surely_close(got, exact, dtype, scale[2])
