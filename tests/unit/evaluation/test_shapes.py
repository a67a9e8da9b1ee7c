"""Hidden sizes keep what the task declares about its sizes."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from core.evaluation.reference import Reference
from core.evaluation.shapes import Size, draw_sizes, namespace_with, next_power_of_two, sizes_of

KERNELBENCH = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 3)
    def forward(self, x):
        return {body}
batch_size = 16
features = 24
def get_inputs():
    return [torch.randn(batch_size, features)]
def get_init_inputs():
    return [features]
"""
HEADS = """
import torch
HEADS: int = 4
WIDTH = 32
PROFILES = {"cpu": {"HEADS": 4, "WIDTH": 32}, "full": {"HEADS": 8, "WIDTH": 96}}
class Model(torch.nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0], HEADS, WIDTH // HEADS).sum(1)
def get_inputs():
    return [torch.randn(5, WIDTH)]
def get_init_inputs():
    return []
"""
sizes = st.lists(st.integers(2, 5000), min_size=2, max_size=4, unique=True).map(tuple)


@given(sizes, st.integers(0, 1000), st.booleans())
@settings(max_examples=200)
def test_sizes_keep_divisibility_and_bounds(declared: tuple[int, ...], seed: int, batch: bool) -> None:
    size = Size(name="N", judged=declared[0], declared=declared)
    drawn = draw_sizes(random.Random(seed), [size], frozenset({"N"} if batch else ()))
    if drawn:
        value, ceiling = drawn["N"], next_power_of_two(size.judged)
        assert value != size.judged and value % math.gcd(*declared) == 0
        largest = min(max(2 * ceiling, 1.5 * ceiling + 2), max(ceiling, *declared))
        assert value <= (2 * size.judged if batch else largest)
        assert value >= 0.25 * size.judged
        if not batch and size.larger():
            assert value > ceiling  # the only declared size is the one that goes beyond


def test_powers_of_two_stay_powers_of_two() -> None:
    size = Size(name="WIDTH", judged=64, declared=(64, 16, 128))
    drawn = {draw_sizes(random.Random(seed), [size], frozenset())["WIDTH"] for seed in range(20)}
    assert drawn == {128}  # beyond the judged one, within the declared ones
    largest = Size(name="WIDTH", judged=128, declared=(128, 16, 64))
    assert {draw_sizes(random.Random(seed), [largest], frozenset())["WIDTH"] for seed in range(20)} == {32, 64}
    other = Size(name="DEPTH", judged=64, declared=(64, 16, 128))
    pairs = [draw_sizes(random.Random(seed), [size, other], frozenset()) for seed in range(40)]
    beyond = [sum(value > 64 for value in pair.values()) for pair in pairs]
    assert set(beyond) == {1} and len({max(pair, key=pair.__getitem__) for pair in pairs}) == 2
    smallest = Size(name="WIDTH", judged=16, declared=(16, 128))
    assert draw_sizes(random.Random(0), [smallest], frozenset()) == {"WIDTH": 32}


def test_a_batch_outgrows_the_block_that_fits_the_judged_one() -> None:
    size = Size(name="N", judged=1000, declared=(1000, 33_000_000))
    for seed in range(20):
        assert 1024 < draw_sizes(random.Random(seed), [size], frozenset({"N"}))["N"] <= 2000


def test_only_batches_vary_without_profiles() -> None:
    reference = Reference(KERNELBENCH.format(body="torch.relu(self.linear(x))"), "linear", "cpu")
    assert {size.name for size in sizes_of(reference._source, "linear", "cpu")} == {"batch_size", "features"}
    found = [reference.hidden(random.Random(seed)) for seed in range(6)]
    assert all(variant is not None and set(variant.sizes) == {"batch_size"} for variant in found)
    assert all(variant is not None and 4 <= variant.sizes["batch_size"] < 16 for variant in found)


def test_rows_that_depend_on_each_other_are_no_batch() -> None:
    for body in (
        "torch.softmax(self.linear(x), 0)",
        "self.linear(x).cumsum(0)",
        "self.linear(x) - self.linear(x).mean(0)",
        "self.linear(x).sum(0)",
        "self.linear(x).flip(0)",
    ):
        reference = Reference(KERNELBENCH.format(body=body), "mixed", "cpu")
        assert reference.hidden(random.Random(0)) is None, body
        assert all(draw.variant == 0 for draw in reference.draws(4).draws)


def test_sizes_at_which_the_module_does_not_run_are_left_out() -> None:
    reference = Reference(HEADS, "heads", "cpu")
    for seed in range(12):
        variant = reference.hidden(random.Random(seed))
        if variant is not None:
            heads, width = variant.sizes.get("HEADS", 4), variant.sizes.get("WIDTH", 32)
            assert width % heads == 0
    for _ in range(4):
        assert len(reference.draws(4).draws) == 4


def test_sizes_are_replaced_where_they_are_assigned() -> None:
    namespace = namespace_with(HEADS, "heads", "full", {"HEADS": 2})
    assert (namespace["HEADS"], namespace["WIDTH"]) == (2, 96)
