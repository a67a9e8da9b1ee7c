"""Return-to-go, REINFORCE++ and GAE over trained tokens, against loops that walk one sequence from its end."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.token_advantages import (
    gae,
    merge,
    moments,
    outcome_rewards,
    reinforce_plus_plus,
    token_returns,
    value_loss,
    whiten,
)

F64 = torch.float64


@st.composite
def rows(draw):
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    n = sum(lengths)
    number = st.floats(-3, 3, width=32)
    return {
        "lengths": lengths,
        "sequence": torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        "mask": torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        "rewards": torch.tensor(draw(st.lists(number, min_size=n, max_size=n)), dtype=F64),
        "values": torch.tensor(draw(st.lists(number, min_size=n, max_size=n)), dtype=F64),
        "end": torch.tensor(draw(st.lists(number, min_size=len(lengths), max_size=len(lengths))), dtype=F64),
    }


def walk(row, gamma, lam, values=None, end=None):
    """A_t = r_t + γ V_next - V_t + γλ A_next, from the last trained token of each sequence to the first."""
    out = [0.0] * len(row["sequence"])
    for i in range(len(row["lengths"])):
        following, value_after = 0.0, float(end[i]) if end is not None else 0.0
        for t in reversed(range(len(out))):
            if row["sequence"][t] != i or not row["mask"][t]:
                continue
            v = float(values[t]) if values is not None else 0.0
            following = float(row["rewards"][t]) + gamma * value_after - v + gamma * lam * following
            out[t], value_after = following, v
    return torch.tensor(out, dtype=F64)


@settings(max_examples=60, deadline=None)
@given(row=rows(), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_token_returns_equal_a_walk(row, gamma):
    got = token_returns(row["rewards"], row["sequence"], gamma=gamma, mask=row["mask"])
    torch.testing.assert_close(got, walk(row, gamma, 1.0))


@settings(max_examples=60, deadline=None)
@given(row=rows(), gamma=st.sampled_from([0.5, 0.97, 1.0]), lam=st.sampled_from([0.0, 0.9, 1.0]), ends=st.booleans())
def test_gae_equals_a_walk(row, gamma, lam, ends):
    end = row["end"] if ends else None
    got, returns = gae(row["rewards"], row["values"], row["sequence"], gamma=gamma, lam=lam, bootstrap=end,
                       mask=row["mask"])  # fmt: skip
    want = walk(row, gamma, lam, row["values"], end)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(returns, torch.where(row["mask"], want + row["values"], 0.0))


@settings(max_examples=40, deadline=None)
@given(row=rows(), bad=st.sampled_from([float("nan"), float("inf"), 7.0]))
def test_masked_tokens_are_not_looked_at(row, bad):
    want = gae(row["rewards"], row["values"], row["sequence"], gamma=0.9, mask=row["mask"])
    plus = reinforce_plus_plus(row["rewards"], row["sequence"], gamma=0.9, mask=row["mask"])
    rewards, values = row["rewards"].clone(), row["values"].clone()
    rewards[~row["mask"]], values[~row["mask"]] = bad, bad
    got = gae(rewards, values, row["sequence"], gamma=0.9, mask=row["mask"])
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert torch.equal(reinforce_plus_plus(rewards, row["sequence"], gamma=0.9, mask=row["mask"]), plus)


@settings(max_examples=40, deadline=None)
@given(row=rows(), seed=st.integers(0, 99))
def test_the_order_of_packing_does_not_matter(row, seed):
    order = torch.randperm(len(row["lengths"]), generator=torch.Generator().manual_seed(seed))
    at = torch.cat([(row["sequence"] == i).nonzero()[:, 0] for i in order])
    want = token_returns(row["rewards"], row["sequence"], gamma=0.9, mask=row["mask"])
    got = token_returns(row["rewards"][at], row["sequence"][at], gamma=0.9, mask=row["mask"][at])
    torch.testing.assert_close(got, want[at], atol=0, rtol=0)


def test_return_to_go_passes_over_tool_tokens_by_hand():
    # two turns of the policy with tool output between: the last reward reaches the first turn, discounted per own token
    mask = torch.tensor([1, 1, 0, 0, 1], dtype=torch.bool)
    rewards = torch.tensor([0.0, 0.0, float("nan"), 5.0, 8.0])
    got = token_returns(rewards, torch.zeros(5, dtype=torch.int64), gamma=0.5, mask=mask)
    assert got.tolist() == [2.0, 4.0, 0.0, 0.0, 8.0]


def test_gae_by_hand():
    # γ = 1, λ = 0.5, values 1, 2, outcome 4: δ = (2 - 1, 4 - 2); A = (1 + 0.5·2, 2)
    adv, returns = gae(torch.tensor([0.0, 4.0]), torch.tensor([1.0, 2.0]), torch.zeros(2, dtype=torch.int64), lam=0.5)
    assert adv.tolist() == [2.0, 2.0] and returns.tolist() == [3.0, 4.0]


def test_outcome_rewards_stand_on_the_last_trained_token():
    sequence = torch.tensor([0, 0, 0, 1, 1, 2])
    mask = torch.tensor([1, 1, 0, 1, 1, 0], dtype=torch.bool)
    got = outcome_rewards(torch.tensor([3.0, 5.0, 9.0]), sequence, mask=mask)
    assert got.tolist() == [0.0, 3.0, 0.0, 0.0, 5.0, 0.0]  # sequence 2 has no trained token


def test_reinforce_plus_plus_by_hand():
    # returns 1, 1 and 3: mean 5/3, variance ((2/3)²·2 + (4/3)²)/2 = 4/3
    sequence = torch.tensor([0, 0, 1])
    got = reinforce_plus_plus(outcome_rewards(torch.tensor([1.0, 3.0]), sequence), sequence)
    want = [(x - 5 / 3) / math.sqrt(4 / 3 + 1e-8) for x in (1, 1, 3)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=F64))


def test_equal_returns_whiten_to_exactly_zero():
    x = torch.full((7,), 0.1, dtype=F64)
    assert whiten(x, moments(x)).tolist() == [0.0] * 7
    assert whiten(x[:1], moments(x[:1])).tolist() == [0.0]
    assert whiten(x[:0], moments(x[:0])).tolist() == []


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), cut=st.integers(0, 30))
def test_moments_of_ranks_merge_to_those_of_the_batch(values, cut):
    x = torch.tensor(values, dtype=F64)
    whole, parts = moments(x), merge([moments(x[:cut]), moments(x[cut:])])
    assert (whole.size, whole.low, whole.high) == (parts.size, parts.low, parts.high)
    assert parts.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-9)
    assert parts.square == pytest.approx(whole.square, rel=1e-9, abs=1e-6)


def test_value_loss_by_hand_and_its_gradient():
    # old 0, clip 0.2: V = 1 is held at 0.2; target 2 -> max(1, 1.8²)/2; target 0 -> max(1, 0.04)/2
    v, old = torch.tensor([1.0, 1.0], dtype=F64), torch.zeros(2, dtype=F64)
    got = value_loss(v, old, torch.tensor([2.0, 0.0]), clip=0.2)
    torch.testing.assert_close(got, torch.tensor([1.62, 0.5], dtype=F64))
    target = torch.tensor([2.0, 0.3], dtype=F64)
    assert torch.autograd.gradcheck(lambda x: value_loss(x, old, target, clip=0.2), (v.clone().requires_grad_(),))


def test_factors_outside_0_1_are_refused():
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 1.5"):
        token_returns(torch.zeros(1), torch.zeros(1, dtype=torch.int64), gamma=1.5)
