"""The pure parts: values on the wire, comparison, feedback, roofline, screens, settings."""

import math
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.evaluation import compare, values
from core.evaluation.categories import CATEGORIES
from core.evaluation.findings import COMPACT_CHARS, FULL_CHARS, Finding, compact, feedback_text, joined
from core.evaluation.reference import Expected, Reference, Work
from core.evaluation.roofline import KernelCounts, Roofline, floor_ms, kernel_ms, modelled, operator_ms
from core.evaluation.screens import screen
from core.evaluation.settings import JudgeSettings, parse_target
from core.evaluation.trees import flatten

DTYPES = sorted(values.DTYPES)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_tensors_survive_the_wire(name: str, shape: list[int], turned: bool) -> None:
    tensor = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape).to(values.DTYPES[name])
    tensor = tensor.t() if turned and tensor.dim() == 2 else tensor
    tree, blobs = values.encode([tensor, {"k": (1, 2.5, None, "s", True, 2**70, torch.float16)}])
    tree = msgspec.msgpack.decode(msgspec.msgpack.encode(tree))
    back, rest = values.decode(tree, memoryview(b"".join(blobs)))
    assert back.dtype == tensor.dtype and back.shape == tensor.shape and back.stride() == tensor.stride()
    assert values.raw_bytes(back) == values.raw_bytes(tensor)
    assert rest == {"k": (1, 2.5, None, "s", True, 2**70, torch.float16)}


def test_what_does_not_travel_is_named() -> None:
    with pytest.raises(values.NotPlainError, match=r"nn\.modules\.activation\.ReLU"):
        values.encode([torch.nn.ReLU()])
    with pytest.raises(values.NotPlainError, match="sparse"):
        values.encode(torch.eye(2).to_sparse())


@pytest.mark.parametrize(
    "leaf",
    [
        ["float32", [4], [1], 0, 12],
        ["float32", [4], [1], 4, 16],
        ["float32", [4], [-1], 0, 16],
        ["float32", [4, 4], [1], 0, 16],
        ["float32", [2**40], [1], 0, 2**42],
        ["float31", [4], [1], 0, 16],
    ],
)
def test_impossible_tensors_are_refused(leaf: list[object]) -> None:
    with pytest.raises((ValueError, KeyError)):
        values.decode(["t", leaf], memoryview(bytes(16)))


def expected(exact: torch.Tensor, dtype: torch.dtype = torch.float32) -> Expected:
    return Expected(structure=["tensor"], native=[exact.to(dtype)], exact=[exact.double()], is_double=True)


def category(want: torch.Tensor, got: torch.Tensor, dtype: torch.dtype = torch.float32) -> str:
    finding = compare.check(expected(want, dtype), got)
    return finding.category if finding else ""


def test_rounding_is_allowed_and_more_is_not() -> None:
    want = torch.linspace(-3, 3, 1000, dtype=torch.float64)
    assert category(want, (want * (1 + 1e-5)).float()) == ""
    assert category(want, (want * (1 + 1e-2)).float()) == "wrong_value"
    assert category(want, want.half().float()) == "wrong_value"
    assert category(want, (want * (1 + 1e-3)).half(), torch.float16) == ""
    assert category(want, (want * (1 + 5e-2)).half(), torch.float16) == "wrong_value"


def test_tolerance_follows_the_spread_not_the_size() -> None:
    tiny = torch.linspace(1e-6, 2e-6, 100, dtype=torch.float64)
    assert category(tiny, torch.zeros(100)) == "wrong_value"
    large = 280000 + torch.linspace(-20, 20, 100, dtype=torch.float64)
    assert category(large, torch.full((100,), 280000.0)) == "wrong_value"
    assert category(large, large.float()) == ""


def test_type_shape_and_structure_are_exact() -> None:
    want = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    assert category(want, want) == "wrong_dtype"
    assert category(want, want.float().reshape(3, 2)) == "wrong_shape"
    assert category(want, want.float()[None]) == "wrong_shape"
    finding = compare.check(expected(want), None)
    assert finding is not None and "returned nothing, wanted one tensor" in finding.headline


@pytest.mark.parametrize(
    ("got", "wanted", "said"),
    [
        (lambda x: [x], lambda x: x, "forward returned a list of 1, wanted one tensor"),
        (lambda x: (x, x), lambda x: x, "forward returned a tuple of 2, wanted one tensor"),
        (lambda x: x, lambda x: [x, x], "forward returned one tensor, wanted a list of 2"),
        (lambda x: (x,), lambda x: [x, x], "forward returned a tuple of 1, wanted a list of 2"),
        (lambda x: {"a": x}, lambda x: [x], "forward returned a dict of 1, wanted a list of 1"),
        (lambda x: [x, [x]], lambda x: (x, x), "forward returned another nesting of tensors than Model does"),
        (lambda x: {"a": x}, lambda x: {"b": x}, "forward returned another nesting of tensors than Model does"),
        (lambda x: [x, (x,)], lambda x: (x, [x]), ""),
    ],
)
def test_another_structure_is_told_as_it_is_and_a_list_may_stand_for_a_tuple(got: Any, wanted: Any, said: str) -> None:
    x = torch.ones(4)
    structure, native = flatten(wanted(x))
    sample = Expected(structure=structure, native=native, exact=[t.double() for t in native], is_double=True)
    header, blobs = values.encode(got(x))  # as it comes from the candidate
    finding = compare.check(sample, values.decode(header, memoryview(b"".join(blobs))))
    assert (finding.headline if finding else "") == said
    assert compare.structures_differ(flatten(got(x))[0], structure) == said
    assert compare.describe(["sequence", [["tensor"]]]) == "a list or tuple of 1"  # from a side that does not say


def test_non_finite_only_where_the_reference_has_it() -> None:
    want = torch.tensor([1.0, math.inf, -math.inf, math.nan], dtype=torch.float64)
    assert category(want, want.float()) == ""
    for index, value in ((0, math.nan), (0, math.inf), (1, -math.inf), (1, 1.0), (3, 1.0), (3, math.inf)):
        got = want.float().clone()
        got[index] = value
        assert category(want, got) == "non_finite", (index, value)


def test_integers_are_exact() -> None:
    want = Expected(structure=["tensor"], native=[torch.arange(5)], exact=[torch.arange(5)], is_double=False)
    assert compare.check(want, torch.arange(5)) is None
    finding = compare.check(want, torch.tensor([0, 1, 2, 4, 4]))
    assert finding is not None and "output[3] = 4, wanted 3" in finding.headline


def test_the_first_wrong_element_is_named() -> None:
    want = torch.arange(12, dtype=torch.float64).reshape(3, 4) + 1
    got = want.float()
    got[1, 2:] = 0
    got[2] = 0
    finding = compare.check(expected(want), got)
    assert finding is not None
    text = feedback_text(finding)
    assert text.startswith("wrong_value: output[1, 2] = 0, wanted 7\n")
    assert "6 of 12 elements are wrong, all from element 6 on" in text


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=600), st.integers(0, 10**6))
def test_feedback_is_bounded(headline: str, code: str, detail: str, line: int) -> None:
    finding = Finding(stage="launch", category="kernel_error", headline=headline, code=code, detail=detail, line=line)
    full, short = feedback_text(finding), feedback_text(finding, "compact")
    assert len(full) <= FULL_CHARS and len(short) <= COMPACT_CHARS and "\n" not in short
    assert compact(full) == short


def test_categories_name_known_stages() -> None:
    stages = {"static", "load", "compile", "launch", "correctness"}
    assert all(stage in stages and text for stage, text in CATEGORIES.values())


def test_screen_notes_and_refuses() -> None:
    good = "import triton\n@triton.jit\ndef k(): pass\nclass ModelNew: pass\n"
    assert screen(good) == (None, ())
    assert screen(good + "import gc\ntry:\n    eval('1')\nexcept ValueError: pass\n")[1] == ("eval", "gc", "try_except")
    for source, wanted, line in (
        ("x = (", "syntax_error", 1),
        ("class Other: pass", "no_model_new", 0),
        ("class ModelNew: pass", "no_kernel", 0),
    ):
        finding, _ = screen(source)
        assert finding is not None and (finding.category, finding.line) == (wanted, line)


def test_settings_say_what_is_impossible() -> None:
    with pytest.raises(ValueError, match="draws = 1: at least 2"):
        JudgeSettings(draws=1)
    # What an assembler would only refuse when the first kernel reaches it is the settings' fault, not the kernel's.
    for target in (
        "h100",
        "cuda:",
        "cuda:xx",
        "cuda:20",
        "cuda:91",
        "cuda:9",
        "hip:gfx1",
        "hip:gfx",
        "hip:90",
        "metal",
    ):
        with pytest.raises(ValueError, match=f"target '{target}': wanted cuda:"):
            JudgeSettings(target=target)
    assert parse_target("cuda:90") == ("cuda", 90, 32)
    assert parse_target("hip:gfx942") == ("hip", "gfx942", 64)
    assert parse_target("hip:gfx1100") == ("hip", "gfx1100", 32)


GPU = Roofline(
    name="round", dram_gb_per_s=1000, l2_gb_per_s=2000, vector_tflops=10, matrix_tflops=100, half_tflops=200,
    launch_us=5,
)  # fmt: skip


def test_roofline_by_hand() -> None:
    # 8 MB at 1000 GB/s are 8 us, and a launch of 5 us.
    assert operator_ms(GPU, 8e6, 0, False) == pytest.approx(0.013)
    # 1 GFLOP at 10 TFLOP/s are 100 us on the vector units, 10 us on the matrix units.
    assert operator_ms(GPU, 8e6, 1e9, False) == pytest.approx(0.105)
    assert operator_ms(GPU, 8e6, 1e9, True) == pytest.approx(0.015)
    counts = KernelCounts(launches=2, sector_bytes=1000, traffic_bytes=1000, flops=0, dot_flops=0)
    assert kernel_ms(GPU, counts, 8000, 1) == pytest.approx(0.018)
    work = Work(operators=(), compulsory_bytes=8_000_000, dot_flops=0, other_flops=0)
    assert floor_ms(GPU, work) == pytest.approx(0.013)


def test_no_candidate_beats_the_floor() -> None:
    judged = Work(operators=(("relu", 800, 100),), compulsory_bytes=800, dot_flops=0, other_flops=100)
    full = Work(operators=(("relu", 80_000_000, 10_000_000),), compulsory_bytes=80_000_000, dot_flops=0, other_flops=1)
    nothing = KernelCounts(launches=0, sector_bytes=0, traffic_bytes=0, flops=0, dot_flops=0)
    model = modelled("cuda:90", judged, full, [nothing], [])
    assert model.candidate_ms == model.floor_ms
    assert model.speedup == pytest.approx(1.0)


CHAIN = """
import torch
N = 1000000
PROFILES = {"cpu": {"N": 1000}}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return torch.tanh(x) * 2.0 + self.bias
def get_inputs():
    return [torch.rand(N)]
def get_init_inputs():
    return []
"""


def test_work_is_counted_from_shapes() -> None:
    reference = Reference(CHAIN, "chain", "cpu")
    assert reference.work is not None
    assert reference.work.compulsory_bytes == 8004
    assert [(name, moved) for name, moved, _ in reference.work.operators] == [
        ("tanh", 8000),
        ("mul", 8000),
        ("add", 8004),
    ]
    assert reference.full_work().compulsory_bytes == 8_000_004


def test_draws_are_fresh_and_differ() -> None:
    reference = Reference(CHAIN, "chain", "cpu")
    drawn = reference.draws(3)
    first, second = drawn.draws, reference.draws(3).draws
    assert drawn.required == ["bias"]
    assert all(float(draw.state["bias"]) != 0 for draw in first)
    inputs = [draw.inputs[0][0] for draw in (*first, *second)]
    assert all(not torch.equal(a, b) for i, a in enumerate(inputs) for b in inputs[:i])
    assert sorted(draw.role for draw in first) == ["changed", "hidden", "original"]
    assert [draw.same_places for draw in first if draw.role != "hidden"] == [False, True]
    assert {draw.grad for draw in first} == {False, True}
    changed = next(draw for draw in first if draw.role == "changed")
    assert float(changed.inputs[0][0].min()) < 0
    for draw in first:
        torch.testing.assert_close(
            draw.expected.exact[0], torch.tanh(draw.inputs[0][0].double()) * 2 + draw.state["bias"].double()
        )


def test_inputs_with_a_meaning_keep_it() -> None:
    source = """
import torch
class Model(torch.nn.Module):
    def forward(self, logits, target, mask, triangle, positive):
        loss = torch.nn.functional.cross_entropy(logits, target)
        return loss + (logits * mask).sum() + triangle.sum() + torch.log(positive).sum()
def get_inputs():
    return [torch.randn(6, 5), torch.randint(0, 5, (6,)), (torch.rand(6, 5) > 0.5), torch.tril(torch.rand(6, 6)),
            torch.rand(7) + 0.1]
def get_init_inputs():
    return []
"""
    for draw in Reference(source, "meaning", "cpu").draws(3).draws:
        _, target, mask, triangle, positive = draw.inputs[0]
        assert target.dtype == torch.int64 and int(target.min()) >= 0 and int(target.max()) < 5
        assert mask.dtype == torch.bool
        assert torch.equal(triangle, torch.tril(triangle))
        assert bool((positive > 0).all())
        assert bool(torch.isfinite(draw.expected.exact[0]))


def test_a_headline_that_was_parted_for_the_policy_is_one_line_again_for_a_person() -> None:
    headline = " ".join(f"word{n}" for n in range(40))
    finding = Finding(stage="load", category="unsupported", headline=headline, detail="And more.")
    feedback = feedback_text(finding)
    assert len(feedback.splitlines()) == 3 and len(compact(feedback)) <= COMPACT_CHARS
    assert joined(feedback) == f"unsupported: {headline}\nAnd more."
    assert joined("wrong_value: short\nAnd more.") == "wrong_value: short\nAnd more."
