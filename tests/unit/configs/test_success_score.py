"""`episodes.success_score`: what ends an episode means the same in every shape of the reward, and can be reached."""

import math

import pytest

from configs.load import ConfigError, load
from core.episodes.rules import ending
from core.episodes.settings import PlaySettings
from core.evaluation.reward import score
from core.evaluation.verdict import Verdict

SHAPES = ("graded", "kevin", "milestone", "threshold")


def config(tmp_path, *overrides):
    path = tmp_path / "run.toml"
    path.write_text('model.path = "p"\n')
    return load(path, overrides)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_episode_ends_with_a_kernel_that_is_clearly_faster_in_every_shape(tmp_path, shape):
    chosen = config(tmp_path, f"reward.shape={shape}")
    settings = PlaySettings.of(chosen.episodes, chosen.rollout)

    def end(speedup):
        verdict = Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speedup_low=speedup)
        points = score(verdict, **chosen.reward.model_dump())
        return ending([points], max_turns=3, success_score=settings.success_score, zero_turns=2)

    assert end(2.2) == "success" and end(0.9) is None
    assert end(1.0) == ("success" if shape == "threshold" else None)  # it knows no more than that


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reward.shape=threshold", "episodes.success_score=1.3"], "'threshold' scores 1 at most; leave it out (1)"),
        (["reward.shape=milestone", "episodes.success_score=3.5"], "'milestone' scores 3 at most; leave it out (3)"),
        (["reward.speed_cap=0.5", "episodes.success_score=1.3"], "'graded' scores 0.8 at most; leave it out (0.8)"),
        (["episodes.success_score=2.4"], "'graded' scores 2.3 at most; leave it out (1.3)"),
    ],
)
def test_what_can_never_be_reached_is_refused_in_one_line(tmp_path, overrides, words):
    with pytest.raises(ConfigError, match="is never reached") as refused:
        config(tmp_path, *overrides)
    assert words in str(refused.value) and "'never'" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("shape", SHAPES)
def test_never_is_never(tmp_path, shape):
    chosen = config(tmp_path, f"reward.shape={shape}", "episodes.success_score=never")
    assert chosen.episodes.success_score == "never"
    assert PlaySettings.of(chosen.episodes, chosen.rollout).success_score == math.inf


def test_given_scores_stand_and_a_run_of_before_is_the_same_run(tmp_path):
    assert config(tmp_path, "reward.shape=kevin", "episodes.success_score=9").episodes.success_score == 9.0
    before = config(tmp_path, "episodes.success_score=1.3")  # as its config.json has it
    assert before.identity() == config(tmp_path).identity()
