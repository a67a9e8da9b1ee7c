"""References are claims: none reaches beyond its storage, into another one, or at memory that is gone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.evaluation.interpreter.operators import Operators
from core.evaluation.interpreter.storages import BadReference, Storages


def held(count: int = 16) -> tuple[Storages, int]:
    storages = Storages()
    return storages, storages.adopt(torch.arange(float(count)))


BAD: dict[str, tuple[dict[int, Any], str]] = {
    "too many elements": ({3: [17]}, "go beyond"),
    "offset beyond the end": ({5: 1}, "go beyond"),
    "strides beyond the end": ({3: [2, 2], 4: [1, 15]}, "go beyond"),
    "a wider dtype": ({2: "float64"}, "go beyond"),
    "a size that overflows": ({3: [2**40, 2**40], 4: [2**40, 1]}, "go beyond"),
    "a negative offset": ({5: -1}, "offset -1"),
    "a negative stride": ({4: [-1]}, "strides"),
    "a negative size": ({3: [-1]}, "sizes"),
    "ranks that differ": ({3: [4, 4]}, "sizes"),
    "an unknown dtype": ({2: "float31"}, "dtype float31"),
    "no such storage": ({1: 8}, "storage 8 does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_reference_that_leaves_its_storage_is_refused(name: str) -> None:
    storages, number = held()
    ref = ["t", number, "float32", [16], [1], 0]
    assert storages.tensor(ref).tolist() == list(range(16))
    changes, words = BAD[name]
    for place, value in changes.items():
        ref[place] = value
    with pytest.raises(BadReference, match=words):
        storages.tensor(ref)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=3), st.integers(0, 20))
def test_what_is_accepted_lies_inside(dimensions: list[tuple[int, int]], offset: int) -> None:
    storages, number = held()
    sizes, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    last = offset + sum((size - 1) * stride for size, stride in dimensions)
    fits = last < 16 if all(sizes) else offset <= 16
    try:
        tensor = storages.tensor(["t", number, "float32", sizes, strides, offset])
    except BadReference:
        assert not fits
    else:
        assert fits and (not tensor.numel() or float(tensor.max()) == last)


def test_views_share_their_storages_number() -> None:
    storages, number = held()
    whole = storages.tensor(["t", number, "float32", [16], [1], 0])
    assert storages.ref(whole[3:]) == ["t", number, "float32", [13], [1], 3]
    storages.tensor(["t", number, "float32", [2, 2], [2, 1], 12]).fill_(-1)
    assert whole[12:].tolist() == [-1.0] * 4
    assert storages.ref(whole.clone())[1] != number


def test_numbers_of_the_hosts_are_even_and_taken_once() -> None:
    storages, number = held()
    assert number % 2 == 1
    assert storages.adopt(torch.zeros(2), 6) == 6
    for taken in (6, number, 7):
        with pytest.raises(BadReference, match="is taken"):
            storages.adopt(torch.zeros(2), taken)


def test_what_is_freed_is_gone() -> None:
    storages, number = held()
    storages.free([number, 12345])
    with pytest.raises(BadReference, match="does not exist"):
        storages.tensor(["t", number, "float32", [1], [1], 0])
    with pytest.raises(BadReference, match="does not exist"):
        storages.grow(number, 64)


def test_a_storage_grows_and_never_shrinks() -> None:
    storages, number = held(4)
    storages.grow(number, 4)
    assert storages.bytes_of(number).numel() == 16
    storages.grow(number, 64)
    assert storages.tensor(["t", number, "float32", [16], [1], 0])[:4].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_copy_has_the_same_numbers_and_other_memory() -> None:
    storages, number = held(4)
    twin = storages.copy()
    ref = ["t", number, "float32", [4], [1], 0]
    twin.tensor(ref).zero_()
    assert storages.tensor(ref).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert twin.adopt(torch.zeros(1)) == storages.adopt(torch.zeros(1)) != number


@pytest.mark.parametrize("name", ["aten::from_file", "aten::set_.source_Storage", "mine::add", "aten::no_such", "add",
                                  "aten::add.No", "quantized::add"])  # fmt: skip
def test_only_torchs_own_harmless_operators_run(name: str) -> None:
    with pytest.raises(BadReference):
        Operators(Storages()).run(name, ["u"], ["d"], [])


@pytest.mark.parametrize("data", [["h", "float32", [4], [1], bytes(15)], ["h", "float31", [4], [1], bytes(16)],
                                  ["h", "float32", [4], [2], bytes(16)], ["zz", 1]])  # fmt: skip
def test_tensors_by_value_have_as_many_bytes_as_they_say(data: list[Any]) -> None:
    with pytest.raises(BadReference):
        Operators(Storages()).decode(data)


def test_memory_that_nobody_wrote_is_poisoned() -> None:
    operators = Operators(Storages())
    device = {"dtype": ["y", "float32"], "device": ["e"]}
    for dtype, wanted in (("float32", "nan"), ("float16", "nan"), ("int64", "113"), ("bool", "True")):
        kwargs = ["d", ["dtype", ["y", dtype]], ["device", device["device"]]]
        out = operators.run("aten::empty.memory_format", ["u", ["l", 3]], kwargs, [])
        assert [str(value) for value in out.tolist()] == [wanted] * 3
    assert operators.take_counts().operators["empty"][0] == 4
    assert operators.take_counts().operators == {}
