"""Hand-computed: γ = 0.4, scores 0.1, 0.3, 1.3.

turn credit        R_2 = 1.3     R_1 = 0.3 + 0.4·1.3 = 0.82     R_0 = 0.1 + 0.4·0.82 = 0.428
trajectory credit  R = 0.1 + 0.4·0.3 + 0.16·1.3 = 0.428
"""

import numpy as np
import pytest

from core import columns
from core.episodes.episode import Episode, Turn, tombstone
from core.episodes.samples import discounted_sum, returns_to_go, samples_of


def _turn(index, prompt, completion, score, version=5):
    return Turn(
        index=index,
        prompt_ids=columns.pack("ids", prompt),
        completion_ids=columns.pack("ids", completion),
        logprobs=columns.pack("logprobs", [-0.5 * token for token in completion]),
        versions=columns.pack("versions", [version + index] * len(completion)),
        score=score,
    )


def _episode(scores, prompts=((1, 2), (1, 2, 3, 4, 9), (1, 2, 3, 4, 9, 5, 9, 8)), end="max_turns"):
    completions = [(3, 4), (5,), (6, 7)]
    turns = [_turn(i, prompts[i], completions[i], score) for i, score in enumerate(scores)]
    return Episode(group_id="g", index=3, task_id="t", turns=tuple(turns), end=end)


def test_turn_credit_makes_a_sample_of_every_turn():
    samples = samples_of(_episode([0.1, 0.3, 1.3]), credit="turn", gamma=0.4)
    assert [sample.ret for sample in samples] == pytest.approx([0.428, 0.82, 1.3], abs=1e-12)
    assert [(sample.group_id, sample.index, sample.turn) for sample in samples] == [
        ("g", 3, 0),
        ("g", 3, 1),
        ("g", 3, 2),
    ]
    second = samples[1]
    assert second.ids.tolist() == [1, 2, 3, 4, 9, 5]
    assert second.mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert second.logprobs.tolist() == [0, 0, 0, 0, 0, -2.5]
    assert second.versions.tolist() == [-1, -1, -1, -1, -1, 6]
    assert (second.ids.dtype, second.mask.dtype) == (np.int32, np.uint8)
    assert (second.logprobs.dtype, second.versions.dtype) == (np.float32, np.int32)


def test_trajectory_credit_makes_one_sample_of_joined_turns():
    (sample,) = samples_of(_episode([0.1, 0.3, 1.3]), credit="trajectory", gamma=0.4)
    assert sample.ret == pytest.approx(0.428, abs=1e-12) and sample.turn == 0
    assert sample.ids.tolist() == [1, 2, 3, 4, 9, 5, 9, 8, 6, 7]
    assert sample.mask.tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 1, 1]
    assert sample.logprobs.tolist() == [0, 0, -1.5, -2, 0, -2.5, 0, 0, -3, -3.5]
    assert sample.versions.tolist() == [-1, -1, 5, 5, -1, 6, -1, -1, 7, 7]


def test_a_broken_prefix_opens_a_new_sample_with_the_same_return():
    episode = _episode([0.1, 0.3, 1.3], prompts=((1, 2), (1, 2, 3, 4, 9), (1, 2, 9, 9)))
    first, second = samples_of(episode, credit="trajectory", gamma=0.4)
    assert (first.turn, second.turn) == (0, 2)
    assert first.ids.tolist() == [1, 2, 3, 4, 9, 5] and first.mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert second.ids.tolist() == [1, 2, 9, 9, 6, 7] and second.mask.tolist() == [0, 0, 0, 0, 1, 1]
    assert first.ret == second.ret == pytest.approx(0.428, abs=1e-12)


def test_a_rewritten_turn_breaks_even_when_lengths_agree():
    episode = _episode([0.1, 0.3, 1.3], prompts=((1, 2), (1, 2, 3, 0, 9), (1, 2, 3, 0, 9, 5, 8)))
    assert [s.ids.tolist() for s in samples_of(episode, credit="trajectory", gamma=0.4)] == [
        [1, 2, 3, 4],
        [1, 2, 3, 0, 9, 5, 8, 6, 7],
    ]


def test_infra_in_the_middle_is_never_a_zero():
    episode = _episode([0.1, None, 1.3])
    (last,) = samples_of(episode, credit="turn", gamma=0.4)
    assert last.turn == 2 and last.ret == 1.3
    assert samples_of(episode, credit="trajectory", gamma=0.4) == []


def test_infra_at_the_end_hides_every_return_before_it():
    assert samples_of(_episode([0.1, None]), credit="turn", gamma=0.4) == []


def test_without_discount_a_turn_stands_alone():
    assert [s.ret for s in samples_of(_episode([0.1, 0.3, 1.3]), credit="turn", gamma=0.0)] == [0.1, 0.3, 1.3]


def test_single_turn_is_the_same_under_both_credits():
    turn, trajectory = (samples_of(_episode([0.3]), credit=credit, gamma=0.4) for credit in ("turn", "trajectory"))
    assert turn[0].ret == trajectory[0].ret == 0.3
    assert turn[0].ids.tolist() == trajectory[0].ids.tolist() == [1, 2, 3, 4]


def test_tombstones_and_unscored_episodes_give_nothing():
    kept = _episode([0.1, 0.3]).turns
    assert samples_of(tombstone("g", 0, "t", "deadline", turns=kept), credit="turn", gamma=0.4) == []
    assert samples_of(_episode([None]), credit="turn", gamma=0.4) == []


def test_unknown_credit_is_refused():
    with pytest.raises(ValueError, match="unknown credit 'x'; known: turn, trajectory"):
        samples_of(_episode([0.1]), credit="x", gamma=0.4)


def test_returns_literals():
    assert returns_to_go([1.0, 0.0, 1.0], 0.4) == pytest.approx([1.16, 0.4, 1.0])
    assert returns_to_go([1.0, None, 0.5, 0.5], 0.5) == [None, None, 0.75, 0.5]
    assert discounted_sum([1.0, 0.0, 1.0], 0.4) == pytest.approx(1.16)
    assert discounted_sum([], 0.4) is None and discounted_sum([1.0, None], 0.4) is None
