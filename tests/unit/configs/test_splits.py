"""Ways to split cards, and the settings that make them: of every recipe for GPUs they can be run as they are told."""

import tomllib
from pathlib import Path

import pytest

from configs import splits
from configs.cards import problem, taken
from configs.load import load
from core.flow.plan import Split

CONFIGS = Path(__file__).parents[3] / "configs"
RECIPES = ["qwen3-8b.toml", "kernelllm-8b.toml", "qwen3-0.6b.toml"]


def recipe(name: str, *overrides: str):
    return load(CONFIGS / name, overrides)


def test_a_recipe_has_the_split_that_it_says():
    config = recipe("qwen3-8b.toml")
    assert splits.own(config, 2, 4) == Split(4, 2, 4, 2)
    assert splits.cards_of(config, "generator") == {4, 5}
    shared = recipe("qwen3-0.6b.toml")
    assert splits.own(shared, 1, 4) == Split(1, 1, 4, 0), "its judge has no card of its own"


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("cards", [3, 6, 8])
def test_every_split_of_a_recipe_can_be_run(name, cards):
    config = recipe(name)
    ways = splits.on_cards(config, splits.own(config, config.local.generators, config.judge.workers), cards, 1)
    assert ways
    for way in ways:
        values = splits.settings(config, way, on_cards=True)
        made = splits.changed(config, values)
        assert not problem(made, cards), way
        assert {card for mine in taken(made, cards).values() for card in mine} == set(range(cards))
        assert len(splits.cards_of(made, "learner")) == way.ranks
        assert len(splits.cards_of(made, "generator")) == way.generators == made.local.generators
        assert splits.judges_apart(made) == way.judge_cards
        assert made.local.evaluators * made.judge.workers == way.workers


def test_a_generator_of_several_cards_is_never_cut():
    config = recipe("qwen3-8b.toml", "rollout.vllm.tensor_parallel=2")
    ways = splits.on_cards(config, Split(4, 1, 4, 2), 8, 3)
    assert {(way.ranks, way.generators, way.judge_cards) for way in ways} == {
        (3, 1, 3),
        (3, 2, 1),
        (4, 1, 2),
        (5, 1, 1),
    }
    assert splits.settings(config, Split(3, 2, 4, 1), True)["rollout.cards"] == [3, 4, 5, 6]


def test_settings_are_lines_of_a_recipe():
    config = recipe("demo.toml")
    values = splits.settings(config, Split(1, 2, 3), on_cards=False)
    assert tomllib.loads(splits.toml(values)) == {"judge": {"workers": 3}, "local": {"evaluators": 1, "generators": 2}}
    assert splits.changed(config, values).judge.workers == 3
    several = recipe("demo.toml", "local.evaluators=2")
    assert splits.settings(several, Split(1, 1, 4), on_cards=False)["judge.workers"] == 2
    assert splits.settings(several, Split(1, 1, 3), on_cards=False)["local.evaluators"] == 1


def test_the_judge_goes_where_the_generators_go_when_it_shared_theirs():
    config = recipe("qwen3-0.6b.toml")
    values = splits.settings(config, Split(2, 1, 4, 0), on_cards=True)
    assert (values["rollout.cards"], values["judge.cards"]) == ([2], [2])
    assert values["weights.transport"] == "nccl", "generators are on the learner's card no more"
