"""The table about held-out evaluation beside training."""

import pytest
from pydantic import ValidationError

from configs.evaluation import Evaluation
from configs.load import load


def test_it_is_off_in_every_recipe_unless_asked_for():
    assert load("configs/demo.toml").evaluation.every_steps == 0
    assert load("configs/demo.toml", ["evaluation.every_steps=8"]).evaluation.every_steps == 8


def test_it_is_no_part_of_what_the_run_is():
    plain = load("configs/demo.toml")
    assert plain.identity_hash() == load("configs/demo.toml", ["evaluation.every_steps=8"]).identity_hash()


def test_greedy_samples_would_all_be_the_same():
    with pytest.raises(ValidationError, match="samples = 2 with greedy, wanted 1"):
        Evaluation(greedy=True, samples=2)
