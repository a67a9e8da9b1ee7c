"""A run's settings at a moment of it, from what it told when it went on with others."""

import pytest

from configs.back_then import BackThen, value_of
from configs.differences import other_settings
from configs.load import ConfigError, load
from configs.schema import RunConfig
from core.shown import shown


def config(**learner) -> RunConfig:
    plain = load("configs/demo.toml")
    learner = {**plain.learner.model_dump(), "proximal": "recompute", **learner}
    return RunConfig.model_validate({**plain.model_dump(), "learner": learner})


def test_each_moment_has_the_settings_of_its_time_whichever_config_stands():
    first = config(lr=1e-3, betas=(0.9, 0.95))
    second = config(lr=1e-4, betas=(0.9, 0.95), corrections=[{"name": "icepop", "low": 0.5, "high": 2.0}])
    third = config(lr=1e-3, betas=(0.9, 0.99), compile=False, device="auto")
    told = [(10.0, other_settings(first, second)), (20.0, other_settings(second, third))]
    for standing in (first, second, third):
        then = BackThen(standing, told)
        for moment, wanted in ((5.0, first), (10.0, second), (19.9, second), (20.0, third), (99.0, third)):
            assert then.at(moment).learner == wanted.learner, (moment, standing.learner.lr)


def test_every_value_of_a_config_is_read_back_as_it_was_shown():
    def leaves(value):
        if isinstance(value, dict):
            for inner in value.values():
                yield from leaves(inner)
        else:
            yield value

    found = [
        leaf for name in ("demo", "qwen3-8b") for leaf in leaves(load(f"configs/{name}.toml").model_dump(mode="json"))
    ]
    for leaf in [*found, [{"name": "icepop", "low": None, "high": 2.0}], "it's", True]:
        assert value_of(shown(leaf, 10_000)) == leaf
    assert len(found) > 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("learner.lr", "__import__('os')", "0.1")], "learner.lr = __import__('os'), which can't be read back"),
        ([("learner.lr", "'fast'", "0.1")], "settings that are none any more"),
    ],
)
def test_what_can_not_be_read_back_is_one_line(changes, said):
    with pytest.raises(ConfigError) as refused:
        BackThen(config(), [(10.0, changes)]).at(1.0)
    assert said in str(refused.value) and "\n" not in str(refused.value)
