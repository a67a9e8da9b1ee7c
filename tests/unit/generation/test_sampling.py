import itertools
import math

import pytest
import torch

from core.generation.sampling import draw, uniforms

LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.10]).log()


def _grid(count: int) -> list[float]:
    return [(i + 0.5) / count for i in range(count)]


def _shares(temperature: float, top_p: float, top_k: int = 0, count: int = 1000) -> list[float]:
    ids, _ = draw(LOGITS.expand(count, -1), [temperature] * count, [top_k] * count, [top_p] * count, _grid(count))
    return [ids.count(token) / count for token in range(4)]


def test_tokens_come_as_often_as_they_are_probable():
    assert _shares(1.0, 1.0) == pytest.approx([0.5, 0.25, 0.15, 0.10], abs=1e-3)


def test_temperature_sharpens():
    squares = [p * p for p in (0.5, 0.25, 0.15, 0.10)]
    assert _shares(0.5, 1.0) == pytest.approx([s / sum(squares) for s in squares], abs=2e-3)


def test_top_p_keeps_the_smallest_set_that_reaches_it_and_logprobs_are_of_what_is_left():
    assert _shares(1.0, 0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-3)
    _, logprobs = draw(LOGITS[None], [1.0], [0], [0.7], [0.9])
    assert logprobs[0] == pytest.approx(math.log(1 / 3), abs=1e-6)
    assert _shares(1.0, 0.1) == [1.0, 0, 0, 0]


def test_top_k_keeps_the_most_probable_and_logprobs_are_of_what_is_left():
    assert _shares(1.0, 1.0, top_k=3) == pytest.approx([5 / 9, 2.5 / 9, 1.5 / 9, 0], abs=1e-3)
    _, logprobs = draw(LOGITS[None], [1.0], [2], [1.0], [0.9])
    assert logprobs[0] == pytest.approx(math.log(1 / 3), abs=1e-6)
    assert _shares(1.0, 1.0, top_k=1) == [1.0, 0, 0, 0]
    for whole in (4, 5, 10**6):
        assert _shares(1.0, 1.0, top_k=whole) == _shares(1.0, 1.0)


def test_top_p_is_of_what_top_k_left():
    # Of [0.5, 0.25, 0.15] renormalized, the first two hold 0.833; of all four they would hold 0.75.
    assert _shares(1.0, 0.8, top_k=3) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-3)
    assert _shares(1.0, 0.8)[2] > 0


def test_what_is_as_probable_as_the_kth_stays():
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    ids = {draw(logits, [1.0], [2], [1.0], [number])[0][0] for number in _grid(50)}
    assert ids == {0, 1, 2}


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (2, 1.0), (0, 0.6), (2, 0.6)])
def test_greedy_takes_the_most_probable_with_its_unscaled_uncut_logprob(top_k, top_p):
    ids, logprobs = draw(LOGITS[None], [0.0], [top_k], [top_p], [0.99])
    assert ids == [0] and logprobs[0] == pytest.approx(math.log(0.5), abs=1e-6)


def test_rows_have_their_own_settings():
    rows = [(1.0, 0, 1.0, 0.99), (0.0, 0, 1.0, 0.99), (1.0, 0, 0.7, 0.99), (0.5, 0, 1.0, 0.3), (1.0, 3, 1.0, 0.99),
            (0.7, 2, 0.9, 0.5), (0.0, 2, 0.5, 0.5)]  # fmt: skip
    temperatures, top_ks, top_ps, numbers = (list(column) for column in zip(*rows, strict=True))
    together = draw(LOGITS.expand(len(rows), -1), temperatures, top_ks, top_ps, numbers)
    alone = [draw(LOGITS[None], [t], [k], [p], [u]) for t, k, p, u in rows]
    assert together[0] == [ids[0] for ids, _ in alone]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in alone], abs=1e-6)


def test_impossible_tokens_are_never_drawn():
    logits = torch.full((2, 5), float("-inf"))
    logits[:, 2] = 0.0
    assert draw(logits, [1.0, 1.0], [0, 3], [1.0, 1.0], [0.0, 1.0 - 2.0**-40]) == ([2, 2], [0.0, 0.0])


def test_streams_repeat_by_seed():
    first, again, other = (list(itertools.islice(uniforms(seed), 300)) for seed in (1, 1, 2))
    assert first == again != other
    assert min(first) >= 0 and max(first) < 1
