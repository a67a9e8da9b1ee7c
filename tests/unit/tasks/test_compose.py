import ast
import itertools
import random

import pytest

from core.tasks.compose import Composition, compose
from core.tasks.compose_kernels import BLOCK, SIZES, STYLES
from core.tasks.compose_mistakes import MISTAKES, plant_kind
from core.tasks.compose_operators import OPERATORS
from core.tasks.compose_program import Step
from core.tasks.pairs import pairs
from core.tasks.split import HELDOUT_PERCENT, side_of

RAISES = {
    "name_undefined": "InterpreterError",
    "prefix_missing": "InterpreterError",
    "function_unknown": "InterpreterError",
    "argument_missing": "TypeError",
    "syntax": "SyntaxError",
    "mask_dropped": "out_of_bounds",
}


def test_kernels_are_right_and_every_kind_of_mistake_is_wrong(tmp_path, run_kernels):
    cases, wanted = [], []
    for operator in OPERATORS:
        alone = Composition(
            operator.arity, (Step(operator.name, tuple(range(operator.arity)), 0.5 if operator.constant else None),)
        )
        cases.append({"source": alone.source, "kernel": alone.kernel(), "seed": 1})
        wanted.append((operator.name, "right"))
    made = compose(seed=11, count=16)
    for composition in made:
        for style in STYLES:
            cases.append({"source": composition.source, "kernel": composition.kernel(style), "seed": 0})
            wanted.append((f"{style} {composition.name}", "right"))
    for kind, style in itertools.product(MISTAKES, STYLES):
        able = [(made_one, plant_kind(made_one, random.Random(3), style, kind)) for made_one in made]
        able = [(composition, kernel) for composition, kernel in able if kernel is not None]
        assert able, f"no composition of {len(made)} shows {kind}"
        for composition, kernel in able[:2]:
            cases.append({"source": composition.source, "kernel": kernel, "seed": 0})
            wanted.append((f"{kind} {style} {composition.name}", RAISES.get(kind, "wrong_value")))
    found = run_kernels(cases, tmp_path)
    assert [(name, answer) for (name, _), (answer, _) in zip(wanted, found, strict=True)] == wanted


def test_equal_seeds_give_equal_compositions_and_others_differ():
    first = compose(seed=5, count=200)
    assert first == compose(seed=5, count=200)
    assert first[:50] == compose(seed=5, count=50)
    assert len({composition.source for composition in first}) == 200
    assert first != compose(seed=6, count=200)


def test_first_composition_stays_what_it_was():
    # A policy that was trained on seed 0 stays reproducible only while the stream stays.
    assert [composition.structure for composition in compose(seed=0, count=3)] == [
        "maximum(square(i0),sub(i1,i0))",
        "sigmoid(minimum(i0,sub(i1,i2)))",
        "mul(add(c,mul(minimum(i0,i1),i0)),c)",
    ]


def test_sides_share_no_structure_and_cut_one_stream():
    together = compose(seed=2, count=2000)
    train = [composition for composition in together if side_of(composition.structure) == "train"]
    heldout = [composition for composition in together if side_of(composition.structure) == "heldout"]
    assert compose(seed=2, count=len(train), side="train") == train
    assert compose(seed=2, count=len(heldout), side="heldout") == heldout
    assert not {composition.structure for composition in train} & {composition.structure for composition in heldout}
    assert abs(100 * len(heldout) / len(together) - HELDOUT_PERCENT) < 5


def test_structure_ignores_names_constants_and_operand_order():
    one = Composition(2, (Step("relu", (0,)), Step("add", (2, 1)), Step("scale", (3,), 0.5)))
    other = Composition(2, (Step("relu", (1,)), Step("add", (0, 2)), Step("scale", (3,), 3.0)))
    assert one.structure == other.structure == "mul(add(i0,relu(i1)),c)"
    swapped = Composition(2, (Step("relu", (0,)), Step("sub", (2, 1)), Step("scale", (3,), 0.5)))
    assert swapped.structure != one.structure


def test_source_has_sizes_that_show_a_dropped_mask():
    assert all(size % BLOCK for size in SIZES.values())
    tree = ast.parse(compose(seed=0, count=1)[0].source)
    assigned = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(assigned["N"]) == SIZES["cpu"]
    assert ast.literal_eval(assigned["PROFILES"]) == {profile: {"N": size} for profile, size in SIZES.items()}


def test_a_mistake_changes_the_kernel_in_one_place():
    for composition in compose(seed=4, count=100):
        wrong, kind = composition.mistake(random.Random(composition.name))
        right_lines, wrong_lines = composition.kernel().splitlines(), wrong.splitlines()
        assert len(right_lines) == len(wrong_lines), kind
        assert sum(one != other for one, other in zip(right_lines, wrong_lines, strict=True)) == 1, kind


def test_pairs_have_the_shares_that_were_asked_for():
    made = list(pairs(1, 1500, mistakes=0.5, repair_mistakes=0.2, second_turns=0.3, staged=0.4))
    first = [pair for pair in made if pair.previous is None]
    second = [pair for pair in made if pair.previous is not None]
    assert abs(len(second) / len(made) - 0.3) < 0.04
    assert abs(sum(pair.mistake is not None for pair in first) / len(first) - 0.5) < 0.05
    assert abs(sum(pair.mistake is not None for pair in second) / len(second) - 0.2) < 0.06
    assert abs(sum(pair.style == "staged" for pair in made) / len(made) - 0.4) < 0.04
    assert all(side_of(pair.task.structure) == "train" for pair in made)
    assert all((pair.previous is None) == (pair.previous_mistake is None) for pair in made)
    assert made == list(pairs(1, 1500, mistakes=0.5, repair_mistakes=0.2, second_turns=0.3, staged=0.4))


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="mistakes is a share and must be between 0 and 1, got 55"):
        next(pairs(0, 1, mistakes=55))
    with pytest.raises(ValueError, match="count of compositions must be 0 or more, got -1"):
        compose(0, -1)
    with pytest.raises(ValueError, match="side must be 'train', 'heldout' or 'all', got 'test'"):
        compose(0, 1, side="test")
    with pytest.raises(ValueError, match=r"must be one of .*got 'fast'"):
        compose(0, 1)[0].kernel("fast")
