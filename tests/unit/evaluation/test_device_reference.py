"""Comparison in parts gives what comparison of the whole gives."""

import pytest
import torch

from core.evaluation import trees
from core.evaluation.gpu import device_compare
from core.evaluation.gpu.device_reference import DeviceReference, Part
from core.evaluation.tolerance import Expected, scale_of

ROWS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {body}
def get_inputs():
    return [torch.randn(64, 96) * 3 + 5]
def get_init_inputs():
    return []
"""


def _reference(body, part):
    reference = DeviceReference(ROWS.format(body=body), "t", "full", "cpu", part)
    inputs = reference.inputs(7)
    reference.learn(inputs)
    return reference, inputs


def test_tasks_are_taken_apart_only_where_indices_are_independent():
    assert _reference("torch.softmax(x, dim=1)", 512)[0].split.dim == 0
    assert _reference("torch.softmax(x, dim=0)", 512)[0].split.dim == 1
    assert _reference("torch.cumsum(x, dim=0)", 512)[0].split.dim == 1
    assert _reference("x * (torch.arange(64) > 40)[:, None]", 512)[0].split.dim == 1
    assert not _reference("x - x.mean()", 512)[0].split
    assert not _reference("x.flip(0, 1)", 512)[0].split
    assert not _reference("torch.relu(x)", 1 << 20)[0].split


def test_the_scale_of_parts_is_that_of_the_whole():
    reference, inputs = _reference("torch.relu(x) * 2", 512)
    (found,) = device_compare.scales(reference, inputs)
    assert found == pytest.approx(scale_of(torch.relu(inputs[0][0].double()) * 2), rel=1e-9)


@pytest.mark.parametrize("body", ["torch.where(x > 9, x / 0, x)", "torch.where(x > 9, float('nan'), x)", "x + 0"])
def test_the_scale_is_that_of_the_finite_elements(body):
    reference, inputs = _reference(body, 512)
    (found,) = device_compare.scales(reference, inputs)
    wanted = reference._run(inputs, True, True)[0]
    assert found == pytest.approx(scale_of(wanted[torch.isfinite(wanted)]), rel=1e-9)


@pytest.mark.parametrize("part", [512, 1 << 20])
@pytest.mark.parametrize(("off", "right"), [(1e-7, True), (1e-2, False), (float("nan"), False)])
def test_one_wrong_element_is_found_in_parts_and_whole(part, off, right):
    reference, inputs = _reference("torch.sigmoid(x)", part)
    got = torch.sigmoid(inputs[0][0])
    got[41, 17] += off
    places = [torch.arange(0, got.numel(), 100)]
    finding, samples = reference.check(inputs, [got], places)
    assert (finding is None) == right
    if right:
        wanted = torch.sigmoid(inputs[0][0].double()).flatten()[places[0]]
        assert torch.allclose(samples[0].wanted, wanted, rtol=1e-12)
        assert bool((samples[0].allowed > 0).all())


def test_flattened_tensors_are_freed_at_once():
    import gc
    import weakref

    gc.disable()
    try:
        tensor = torch.zeros(4)
        _, found = trees.flatten([tensor, {"a": tensor}])
        alive = weakref.ref(found[0])
        del found
        assert alive() is None
    finally:
        gc.enable()


def test_samples_of_what_a_rounding_decides_let_any_right_answer_through():
    """An argmax of near ties was right in the whole comparison, so it is right in timed calls."""
    native, exact = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 7, 3, 4])
    expected = Expected(structure=["tensor"], native=[native], exact=[native], is_double=False, others=[[exact]])
    part = Part(start=0, stop=0, expected=expected, effects=None)
    places = torch.tensor([3, 1, 0])
    found = device_compare.Samples(wanted=torch.zeros(3, dtype=torch.int64), allowed=torch.zeros(3).double())
    device_compare._sample(found, part, 0, places, None, native, None)
    assert found.wanted.tolist() == [4, 2, 1] and found.allowed.tolist() == [0.0, float("inf"), 0.0]
