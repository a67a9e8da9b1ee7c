"""Input sets without masters: every change of the shared bytes is found, and parts are private."""

import pytest
import torch

from core.evaluation.gpu import inputs as gpu_inputs
from core.evaluation.gpu.inputs import ChangedInputs, Sealed, Split, Sums

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float64)


def _sealed(tensor, split):
    shared = gpu_inputs.copied(tensor)
    found = Sealed([[shared], {}], split, Sums("cpu"))
    found.note(0, tensor)
    return found, shared


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "split", [None, Split(dim=0, size=11, each=4, sliced=(True,)), Split(dim=1, size=7, each=3, sliced=(True,))]
)
def test_one_changed_element_is_found(dtype, split):
    tensor = (torch.randn(11, 7, 3) * 5).to(dtype)
    sealed, shared = _sealed(tensor, split)
    assert torch.equal(sealed.whole()[0][0], tensor)
    shared[9, 5, 1] = ~shared[9, 5, 1] if dtype == torch.bool else shared[9, 5, 1] + 1
    with pytest.raises(ChangedInputs) as found:
        sealed.whole()
    assert found.value.number == 0
    if split is not None:
        first, *_, last = split.ranges()
        assert torch.equal(sealed.part(split, *first)[0][0], split.cut(tensor, *first))
        with pytest.raises(ChangedInputs):
            for bounds in (split.ranges()[1], last):
                sealed.part(split, *bounds)


def test_swapped_elements_rows_and_signs_of_zero_are_found():
    tensor = torch.randn(3, gpu_inputs.ROW * 2 + 5)
    sums = Sums("cpu")
    before = sums.of(tensor)
    swapped = tensor.clone()
    swapped[0, [1, 2]] = tensor[0, [2, 1]]
    assert sums.of(swapped) != before
    assert sums.of(tensor[[1, 0, 2]].clone()) != before
    assert sums.of(tensor.roll(gpu_inputs.ROW, 1)) != before
    assert sums.of(torch.zeros(100)) != sums.of(-torch.zeros(100))
    assert Sums("cpu").of(tensor) != before


def test_parts_are_private():
    split = Split(dim=0, size=8, each=4, sliced=(True,))
    sealed, shared = _sealed(torch.ones(8, 3), split)
    part = sealed.part(split, 0, 4)[0][0]
    shared.zero_()
    assert bool((part == 1).all())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(6, 8)[:, ::2],
        torch.randn(6, 1).expand(6, 5),
        torch.randn(4, 6).T,
        torch.arange(10.0).unfold(0, 4, 2),
        torch.randn(0, 3),
        torch.tensor(2.5),
    ],
    ids=["strided", "expanded", "transposed", "overlapping", "empty", "scalar"],
)
def test_layouts_are_copied_with_their_gaps(tensor):
    found = gpu_inputs.copied(tensor)
    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)
    sealed, shared = _sealed(tensor, None)
    assert torch.equal(sealed.whole()[0][0], tensor)
    assert shared.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


@pytest.mark.parametrize(
    ("tensor", "moves"),
    [
        (torch.rand(100), True),
        (torch.randn(100).half(), True),
        ((torch.rand(100) > 0.5).float(), False),
        (torch.randint(0, 50, (100,)).float(), False),
        (torch.randint(0, 50, (100,)), False),
        (torch.rand(10, 1).expand(10, 10), True),
    ],
)
def test_values_change_where_that_keeps_their_meaning(tensor, moves):
    before = tensor.clone()
    (after,) = gpu_inputs.changed([tensor.clone() if tensor.is_contiguous() else gpu_inputs.copied(tensor)])
    assert torch.equal(after, before) != moves
    assert float(after.abs().max()) <= float(before.abs().max())
