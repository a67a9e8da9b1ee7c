import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.episodes.rules import ending, fits

DEFAULT = {"max_turns": 3, "success_score": 1.3, "zero_turns": 2}


@pytest.mark.parametrize(
    ("scores", "end"),
    [
        ([], None),
        ([0.0], None),
        ([0.3], None),
        ([1.3], "success"),
        ([0.0, 2.0], "success"),
        ([0.0, 0.0], "gave_up"),
        ([-1.0, 0.0], "gave_up"),
        ([0.1, 0.0], None),
        ([0.0, 0.1, 0.0], "max_turns"),
        ([0.3, 0.0, 0.0], "gave_up"),
        ([0.0, None], None),
        ([0.1, 0.3, 1.29], "max_turns"),
    ],
)
def test_ending(scores, end):
    assert ending(scores, **DEFAULT) == end


def test_giving_up_can_be_off_and_longer():
    assert ending([0.0, 0.0], max_turns=3, success_score=1.3, zero_turns=0) is None
    assert ending([0.0, 0.0, 0.0], max_turns=3, success_score=1.3, zero_turns=0) == "max_turns"
    assert ending([0.0, 0.0], max_turns=5, success_score=1.3, zero_turns=3) is None
    assert ending([0.0, 0.0, 0.0], max_turns=5, success_score=1.3, zero_turns=3) == "gave_up"


@given(st.lists(st.one_of(st.none(), st.floats(-1, 2.3)), max_size=8), st.integers(1, 6), st.integers(0, 4))
def test_an_episode_always_ends_by_its_last_turn(scores, max_turns, zero_turns):
    end = ending(scores, max_turns=max_turns, success_score=1.3, zero_turns=zero_turns)
    assert (end is not None) or len(scores) < max_turns


def test_fits_asks_for_a_quarter_of_the_answer():
    assert fits(900, context_tokens=1000, max_new_tokens=400)
    assert not fits(901, context_tokens=1000, max_new_tokens=400)
    assert fits(999, context_tokens=1000, max_new_tokens=1)
    assert not fits(1000, context_tokens=1000, max_new_tokens=1)
