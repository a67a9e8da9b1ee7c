"""Log-probs of requests that come, sample, end or vanish, against a list for each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.generation.kept_logprobs import KeptLogprobs

STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 200), unique=True, max_size=90),  # who samples
        st.integers(1, 300),  # how many tokens, where it is one request
        st.lists(st.integers(0, 200), unique=True, max_size=30),  # who ends then
        st.lists(st.integers(0, 200), unique=True, max_size=30),  # who is gone without a word
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_what_was_sampled_comes_back(steps):
    kept, wanted = KeptLogprobs(), dict[str, list[float]]()
    alive, drawn = set[str](), np.random.default_rng(0)
    for who, tokens, ends, gone in steps:
        names = [f"r{number}" for number in who]
        for name in names:
            if name not in kept:
                kept.begin(name, alive)
                wanted[name] = []
            elif name not in alive:  # one that vanished and whose name comes again: the engine gives no name twice
                assert kept.take(name)
                kept.begin(name, alive)
                wanted[name] = []
            alive.add(name)
        count = tokens if len(names) == 1 else 1
        values = drawn.normal(size=(len(names), count)).astype(np.float32)
        if count == 1:
            kept.add_each(names, values[:, 0])
        else:
            kept.add(names[0], values[0])
        for name, row in zip(names, values.tolist(), strict=True):
            wanted[name] += row
        for name in {f"r{number}" for number in ends} & alive:
            assert np.frombuffer(kept.take(name), np.float32).tolist() == wanted.pop(name)
            alive.discard(name)
        alive -= {f"r{number}" for number in gone}
    for name in alive:
        assert np.frombuffer(kept.take(name), np.float32).tolist() == wanted.pop(name)


def test_rows_of_requests_that_vanished_are_used_again():
    kept = KeptLogprobs()
    for number in range(10_000):
        kept.begin(f"r{number}", {f"r{number - 1}", f"r{number}"})
        kept.add_each([f"r{number}"], np.array([float(number)], np.float32))
    assert len(kept._counts) == 64 and len(kept) <= 64
    assert np.frombuffer(kept.take("r9999"), np.float32).tolist() == [9999.0]


def test_a_step_with_a_stranger_changes_nothing():
    kept = KeptLogprobs()
    kept.begin("a", {"a"})
    kept.add_each(["a"], np.array([1.0], np.float32))
    with pytest.raises(KeyError):
        kept.add_each(["a", "b"], np.array([2.0, 3.0], np.float32))
    kept.add_each([], np.zeros(0, np.float32))
    assert np.frombuffer(kept.take("a"), np.float32).tolist() == [1.0] and "a" not in kept
