"""Every recipe can be run for any number of steps: `--steps 1` is how people try things."""

from pathlib import Path

import pytest

from actors.learner_parts import trainer_settings
from configs.load import load

RECIPES = [p for p in sorted((Path(__file__).parents[3] / "configs").glob("*.toml")) if "sft" not in p.stem]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_run_of_any_length_has_a_learning_rate(path, schedule):
    for steps in (1, 2, 3, 5, 6, 100):
        settings = trainer_settings(load(path, [f"run.steps={steps}", f"learner.schedule={schedule}"]))
        assert settings.warmup_steps < steps
