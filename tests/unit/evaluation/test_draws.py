"""Which calls a candidate gets: secret, varied, and true to what the task's inputs mean."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.evaluation import draws, trees
from core.evaluation.reference import Reference
from core.tasks.format import TaskError

NORM = """
import torch
import torch.nn as nn
ROWS = 8
WIDTH = 32
PROFILES = {"cpu": {"ROWS": 8, "WIDTH": 32}, "full": {"ROWS": 4096, "WIDTH": 1024}}
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.table = torch.rand(width)
        self.register_buffer("running_mean", torch.zeros(width))
    def forward(self, x, share):
        return self.norm(x) * self.table + share * self.running_mean
def get_inputs():
    return [torch.randn(ROWS, 2 * WIDTH)[:, ::2], 0.3]
def get_init_inputs():
    return [WIDTH]
"""


@given(st.integers(0, 2**31), st.integers(2, 8), st.sampled_from([[True], [False], [True, False]]), st.booleans())
@settings(max_examples=200)
def test_every_plan_can_be_carried_out(seed: int, count: int, modes: list[bool], hidden: bool) -> None:
    plan = draws.plan(random.Random(seed), count, modes, hidden)
    roles = [part.role for part in plan]
    assert len(roles) == count and roles.count("original") == 1 and roles.count("changed") >= 1
    judged = [part for part in plan if part.role != "hidden"]
    assert [part.same_places for part in judged] == [
        index > 0 and part.repeats is None for index, part in enumerate(judged)
    ]
    assert ("hidden" in roles) == (hidden and count > 2)
    assert roles.count("repeated") == (count > 3)
    for index, part in enumerate(plan):
        assert part.training in modes
        if part.repeats is not None:
            source = plan[part.repeats]
            assert part.repeats < index and source.role in ("original", "changed")
            assert (part.training, part.grad, part.kinds) == (source.training, source.grad, source.kinds)
    distinct = [part for part in plan if part.repeats is None]
    assert {part.grad for part in distinct} == {False, True}
    assert {part.training for part in distinct} == set(modes)


def test_the_order_is_no_secret_told_twice() -> None:
    orders = {tuple(part.role for part in draws.plan(random.Random(seed), 4, [True], True)) for seed in range(300)}
    assert len(orders) >= 12


def test_calls_carry_what_they_need() -> None:
    reference = Reference(NORM, "norm", "cpu")
    for _ in range(6):
        drawn = reference.draws(4)
        by_role = {draw.role: draw for draw in drawn.draws}
        assert set(by_role) == {"original", "changed", "hidden", "repeated"}
        hidden, original = by_role["hidden"], by_role["original"]
        assert hidden.variant > 0 and original.variant == by_role["changed"].variant == 0
        width = hidden.init[0][0]
        assert hidden.inputs[0][0].shape[1] == width == hidden.state["norm.weight"].shape[0]
        assert hidden.inputs[0][0].shape != original.inputs[0][0].shape
        assert hidden.plain["table"].shape == (width,)
        assert hidden.expected.native[0].shape == hidden.inputs[0][0].shape
        assert hidden.work_ratio > 0 and original.work_ratio == 1.0
        assert drawn.required == ["norm.weight", "norm.bias", "running_mean"]
        for draw in drawn.draws:
            assert draw.inputs[0][0].stride()[1] == 2, "strided inputs stay strided"
            assert float(draw.state["running_mean"].abs().max()) > 0
        repeated = by_role["repeated"]
        assert repeated.repeats is not None
        source = drawn.draws[repeated.repeats]
        assert torch.equal(repeated.inputs[0][0], source.inputs[0][0]) and not repeated.same_places
        assert all(torch.equal(repeated.state[name], source.state[name]) for name in source.state)
        assert not torch.equal(original.state["norm.weight"], by_role["changed"].state["norm.weight"])


@pytest.mark.parametrize("kind", ["wide", "wide_positive", "narrow", "narrow_positive", "mixed", "sparse"])
@given(st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_inputs_keep_layout_and_meaning(kind: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn((6, 5, 4), generator=generator)
    inputs = [
        [
            base.transpose(0, 2),
            base[:, :1, :].expand(6, 5, 4),
            base.unfold(2, 2, 1),
            torch.tril(torch.randn((9, 9), generator=generator)),
            torch.randint(0, 7, (20,), generator=generator),
            torch.randint(0, 7, (20,), generator=generator).float(),
            torch.rand(20, generator=generator) < 0.5,
            base.half(),
            3,
        ],
        {"alpha": 0.7},
    ]
    changed = draws.transformed(inputs, kind, generator)
    old, new = trees.flatten(inputs)[1], trees.flatten(changed)[1]
    for before, after in zip(old, new, strict=True):
        assert (before.shape, before.stride(), before.dtype) == (after.shape, after.stride(), after.dtype)
    assert not torch.equal(new[0], old[0]) and not torch.equal(new[1], old[1])
    assert torch.equal(new[1], new[1][:, :1].expand(6, 5, 4))
    assert torch.equal(new[3], torch.tril(new[3]))
    assert all(torch.equal(new[number], old[number]) for number in (2, 4, 5, 6))
    assert changed[0][8] == 3 and 0.5 < changed[1]["alpha"] < 0.9
    if kind.endswith("positive"):
        assert float(new[0].min()) >= 0


@pytest.mark.parametrize("kind", ["wide", "wide_positive", "mixed"])
@given(st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_some_rows_and_columns_are_small(kind: str, seed: int) -> None:
    """A wrong epsilon in a norm over rows, or over columns, shows nowhere else."""
    generator = torch.Generator().manual_seed(seed)
    changed = draws.transformed([torch.randn((6, 40, 3), generator=generator)], kind, generator)[0]
    for dim in (0, 1):
        sizes = changed.square().mean([at for at in range(3) if at != dim]).sqrt()
        assert float(sizes.min()) < 0.2 < float(sizes.max())
    whole = draws.transformed([torch.randn(40, generator=generator)], kind, generator)[0]
    assert float(whole.square().mean().sqrt()) > 0.2


@given(rows=st.integers(2, 9), columns=st.integers(2, 120), seed=st.integers(0, 2**20))
@settings(max_examples=60, deadline=None)
def test_some_values_are_large_at_any_size(rows: int, columns: int, seed: int) -> None:
    """A softmax that clamps at 4 passed once in a hundred at 6 x 100."""
    generator = torch.Generator().manual_seed(seed)
    (new,) = draws.transformed([torch.randn(rows, columns, generator=generator)], "wide", generator)
    assert new.shape == (rows, columns) and float(new.max()) >= 5 and float(new.min()) <= -5


def test_values_that_break_the_task_are_not_used() -> None:
    source = NORM.replace("self.norm(x) * self.table", "torch.log(self.norm(x) * 0 + x)").replace(
        "torch.randn(ROWS, 2 * WIDTH)", "torch.rand(ROWS, 2 * WIDTH)"
    )
    for _ in range(4):
        for draw in Reference(source, "log", "cpu").draws(4).draws:
            assert torch.isfinite(draw.expected.exact[0]).all(), draw.kind


def test_a_module_that_is_random_is_refused() -> None:
    with pytest.raises(TaskError, match="another output at every call"):
        Reference(NORM.replace("self.norm(x)", "torch.rand_like(x)"), "random", "cpu")
