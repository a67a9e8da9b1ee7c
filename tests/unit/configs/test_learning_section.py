"""The learner's table against the trainer's own settings."""

import pytest

from actors.learner_parts import trainer_settings
from configs.schema import RunConfig
from core.training.settings import TrainerSettings

ELSEWHERE = {
    "model", "revision", "dtype", "seed", "constant_tokens", "context_tokens", "schedule_steps", "credit",
    "temperature",
}  # fmt: skip
"""What other tables of the config say."""


def config(**learner):
    return RunConfig.model_validate({"model": {"path": "p"}, "learner": learner})


def test_every_setting_of_the_trainer_can_be_set():
    learner = set(type(config().learner).model_fields)
    assert set(TrainerSettings.__struct_fields__) - ELSEWHERE == learner
    assert trainer_settings(config(collective_timeout_s=45.0)).collective_timeout_s == 45.0


def test_the_trainer_learns_the_temperature_of_the_rollouts():
    chosen = config()
    rollout = chosen.rollout.model_copy(update={"temperature": 0.8})
    assert trainer_settings(chosen.model_copy(update={"rollout": rollout})).temperature == 0.8


@pytest.mark.parametrize("value", [0, -1.0])
def test_a_timeout_is_above_zero(value):
    with pytest.raises(ValueError, match="greater than 0"):
        config(collective_timeout_s=value)


@pytest.mark.parametrize("betas", [[1.5, 0.9], [0.9, 1.0], [-0.1, 0.999], [0.9, True]])
def test_betas_that_the_optimizer_would_refuse_are_refused_here(betas):
    with pytest.raises(ValueError, match=r"betas"):
        config(betas=betas)


@pytest.mark.parametrize("field", ["lr", "critic_lr"])
@pytest.mark.parametrize("value", [0.0, -1e-6, 1e6, float("inf"), float("nan")])
def test_a_rate_that_would_wreck_the_policy_in_one_step_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        config(**{field: value})
