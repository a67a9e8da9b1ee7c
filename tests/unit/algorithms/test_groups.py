"""What concerns groups: masked members, turn-level credit, MaxRL, scales, shaping, dynamic sampling."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.advantages import advantages, turn_level_advantages, turn_returns
from core.algorithms.rewards import dynamic_sampling, normalise_returns, overlong_members, overlong_penalty

F64 = torch.float64
MEMBERS = st.lists(st.tuples(st.floats(0, 3, width=32), st.integers(0, 3), st.booleans()), min_size=1, max_size=20)


def reference(rows, baseline, scale):
    everyone = [r for r, _, counts in rows if counts]
    out = []
    for r, group, counts in rows:
        own = [x for x, g, c in rows if g == group and c]
        if not counts or min(own) == max(own):
            out.append(0.0)
            continue
        mean = math.fsum(own) / len(own)
        a = {"mean": r - mean, "maxrl": (r - mean) / mean}.get(baseline, (r - mean) * len(own) / max(len(own) - 1, 1))
        a /= {"none": 1.0, "group": statistics.stdev(own) + 1e-6, "batch": statistics.stdev(everyone) + 1e-6}[scale]
        out.append(a)
    return torch.tensor(out, dtype=F64)


@settings(max_examples=80, deadline=None)
@given(
    rows=MEMBERS,
    baseline=st.sampled_from(["leave_one_out", "mean", "maxrl"]),
    scale=st.sampled_from(["none", "group", "batch"]),
    bad=st.sampled_from([float("nan"), float("inf"), 1e30]),
)
def test_masked_members_count_in_nobodys_baseline(rows, baseline, scale, bad):
    returns = torch.tensor([r if counts else bad for r, _, counts in rows], dtype=F64)
    got = advantages(returns, torch.tensor([g for _, g, _ in rows]), baseline=baseline, scale=scale,
                     members=torch.tensor([c for _, _, c in rows]))  # fmt: skip
    torch.testing.assert_close(got.double(), reference(rows, baseline, scale), atol=1e-5, rtol=1e-4)


def test_maxrl_by_hand_and_its_refusal():
    got = advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 0, 1]), baseline="maxrl")
    assert got.tolist() == [1.0, -1.0, -1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match=r"returns must be >= 0, got -1\.0"):
        advantages(torch.tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.int64), baseline="maxrl")


def test_batch_scale_by_hand():
    got = advantages(torch.tensor([0.0, 2.0, 4.0, 4.0]), torch.tensor([0, 0, 1, 1]), baseline="mean", scale="batch")
    std = math.sqrt((6.25 + 0.25 + 2.25 + 2.25) / 3)
    torch.testing.assert_close(got, torch.tensor([-1 / std, 1 / std, 0.0, 0.0]))


TURNS = st.lists(st.lists(st.tuples(st.floats(-2, 2, width=32), st.booleans()), min_size=1, max_size=4), min_size=1,
                 max_size=6)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(episodes=TURNS, gamma=st.sampled_from([0.0, 0.4, 1.0]), seed=st.integers(0, 99))
def test_turn_level_leave_one_out_equals_a_loop(episodes, gamma, seed):
    rows, returns = [], {}
    for e, turns in enumerate(episodes):
        for t in range(len(turns)):
            future = turns[t:]
            if all(known for _, known in future):
                returns[e, t] = math.fsum(s * gamma**k for k, (s, _) in enumerate(future))
            rows.append((e, t, turns[t][0] if turns[t][1] else float("nan"), turns[t][1]))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [rows[i] for i in order]
    episode, turn, score, known = (torch.tensor(column) for column in zip(*rows, strict=True))
    got, has = turn_level_advantages(score, episode, turn, episode % 2, gamma=gamma, known=known)
    for i, (e, t, _, _) in enumerate(rows):
        assert bool(has[i]) == ((e, t) in returns)
        others = [r for (f, u), r in returns.items() if u == t and f % 2 == e % 2 and f != e]
        want = returns[e, t] - math.fsum(others) / len(others) if (e, t) in returns and others else 0.0
        assert float(got[i]) == pytest.approx(want, abs=1e-5)


def test_turn_returns_by_hand():
    got, has = turn_returns(
        torch.tensor([1.0, 2.0, float("nan"), 4.0]),
        torch.tensor([0, 0, 1, 1]),
        torch.tensor([0, 1, 0, 1]),
        gamma=0.5,
        known=torch.tensor([True, True, False, True]),
    )
    assert got.tolist() == [2.0, 2.0, 0.0, 4.0] and has.tolist() == [True, True, False, True]


def test_overlong_penalty_by_hand():
    got = overlong_penalty(torch.tensor([0, 80, 90, 100, 500]), max_tokens=100, buffer_tokens=20, factor=2.0)
    assert got.tolist() == [0.0, 0.0, -1.0, -2.0, -2.0]
    with pytest.raises(ValueError, match=r"buffer_tokens must lie in 1..max_tokens \(10\), got 0"):
        overlong_penalty(torch.tensor([1]), max_tokens=10, buffer_tokens=0)
    assert overlong_members(torch.tensor([True, True]), torch.tensor([False, True])).tolist() == [True, False]


def test_dynamic_sampling_names_its_reasons():
    returns = torch.tensor([1.0, 1.0, 0.5, 0.0, 1.0, 9.0, float("nan"), 0.9, 1.0, 0.0, 0.1])
    group = torch.tensor([0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    members = torch.isfinite(returns)
    keep, reasons = dynamic_sampling(returns, group, 7, members=members, mean_bounds=(0.1, 0.9))
    assert reasons == ["all_equal", "singleton", None, "singleton", "mean_too_high", "mean_too_low", "no_member"]
    assert keep.tolist() == [reason is None for reason in reasons]
    with pytest.raises(ValueError, match="non-finite return"):
        dynamic_sampling(returns, group, 7)


@pytest.mark.parametrize("value", [0.0, 0.3, -0.3, 1e6])
def test_rounding_is_nothing_to_learn_from(value):
    near = torch.tensor([value, value + 1e-12 * max(1.0, abs(value))] * 2, dtype=torch.float64)
    group = torch.zeros(4, dtype=torch.int64)
    assert dynamic_sampling(near, group, 1)[1] == ["all_equal"]
    assert dynamic_sampling(near + torch.tensor([0.0, 0.01] * 2), group, 1)[1] == [None]


@settings(max_examples=60, deadline=None)
@given(
    rows=MEMBERS, centre=st.sampled_from(["none", "group", "batch"]), scale=st.sampled_from(["none", "group", "batch"])
)
def test_normalise_returns_equals_a_loop(rows, centre, scale):
    returns = torch.tensor([r if counts else float("nan") for r, _, counts in rows], dtype=F64)
    got = normalise_returns(
        returns,
        torch.tensor([g for _, g, _ in rows]),
        centre=centre,
        scale=scale,
        bounds=(0.0, 2.0),
        members=torch.tensor([c for _, _, c in rows]),
    )
    for i, (r, group, counts) in enumerate(rows):
        sets = {"group": [min(x, 2.0) for x, g, c in rows if g == group and c],
                "batch": [min(x, 2.0) for x, _, c in rows if c]}  # fmt: skip
        want = min(r, 2.0)
        if counts and centre != "none":
            own = sets[centre]
            want = 0.0 if min(own) == max(own) else want - math.fsum(own) / len(own)
        if counts and scale != "none" and min(sets[scale]) != max(sets[scale]):
            want /= statistics.stdev(sets[scale]) + 1e-6
        assert float(got[i]) == pytest.approx(want if counts else 0.0, rel=1e-4, abs=1e-6)


def test_normalise_returns_by_hand():
    got = normalise_returns(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([0, 0, 1]), centre="group", bounds=(0.0, 5.0))
    assert got.tolist() == [-1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="unknown centre 'median'"):
        normalise_returns(torch.zeros(1), torch.zeros(1, dtype=torch.int64), centre="median")
