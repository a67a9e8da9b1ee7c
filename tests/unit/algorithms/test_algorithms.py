"""Advantages, objectives and corrections against float64 references written on their own, and numbers by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.advantages import advantages, index_by_key
from core.algorithms.corrections import token_tis
from core.algorithms.objectives import entropy, kl_k3, ppo_clip, sample_weights


def reference_advantages(rets: list[float], keys: list, baseline: str, std: bool) -> list[float]:
    out = []
    for i, (r, key) in enumerate(zip(rets, keys, strict=True)):
        members = [rets[j] for j in range(len(rets)) if keys[j] == key]
        others = [rets[j] for j in range(len(rets)) if keys[j] == key and j != i]
        equal = all(m == members[0] for m in members)
        if baseline == "none":
            a = r
        elif equal:
            a = 0.0
        elif baseline == "mean":
            a = r - math.fsum(members) / len(members)
        else:
            a = r - math.fsum(others) / len(others)
        if std and not equal:
            mean = math.fsum(members) / len(members)
            a /= math.sqrt(math.fsum((m - mean) ** 2 for m in members) / (len(members) - 1)) + 1e-6
        out.append(a)
    return out


KEYS = st.sampled_from([("a", 0, "g"), ("a", 1, "g"), ("b", 0, "g"), ("b", 0, "t")])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(-3, 3, width=32), KEYS), min_size=1, max_size=24),
    baseline=st.sampled_from(["leave_one_out", "mean", "none"]),
    std=st.booleans(),
)
def test_advantages_equal_the_reference(rows, baseline, std):
    rets, keys = [r for r, _ in rows], [k for _, k in rows]
    got = advantages(
        torch.tensor(rets, dtype=torch.float64), index_by_key(keys), baseline=baseline, std_normalisation=std
    )
    want = torch.tensor(reference_advantages(rets, keys, baseline, std), dtype=torch.float64)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(st.floats(-3, 3, width=32), KEYS), min_size=2, max_size=16), seed=st.integers(0, 99))
def test_advantages_follow_ids_not_positions(rows, seed):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()

    def run(items):
        return advantages(torch.tensor([r for r, _ in items], dtype=torch.float64), index_by_key([k for _, k in items]))

    torch.testing.assert_close(run([rows[i] for i in order]), run(rows)[order], atol=1e-6, rtol=0)


def test_leave_one_out_by_hand():
    # group a: 1, 0, 0.5 -> 1 - 0.25, 0 - 0.75, 0.5 - 0.5; group b alone -> 0
    keys = ["a", "b", "a", "a"]
    got = advantages(torch.tensor([1.0, 9.0, 0.0, 0.5]), index_by_key(keys))
    assert got.tolist() == [0.75, 0.0, -0.75, 0.0]


def test_equal_returns_are_exactly_zero_with_and_without_std():
    rets = torch.full((3,), 0.1, dtype=torch.float64)  # the mean of three 0.1 is not 0.1
    for std in (False, True):
        got = advantages(rets, torch.zeros(3, dtype=torch.int64), baseline="mean", std_normalisation=std)
        assert got.tolist() == [0.0, 0.0, 0.0]


def test_bad_input_to_advantages_is_refused():
    with pytest.raises(ValueError, match="non-finite return"):
        advantages(torch.tensor([1.0, float("nan")]), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="unknown baseline 'median'"):
        advantages(torch.tensor([1.0]), torch.zeros(1, dtype=torch.int64), baseline="median")


def test_ppo_clip_by_hand():
    # ratios 2, 2, 0.5, 0.5 with A = 2, -2, 2, -1 and bounds [0.8, 1.28]:
    # A>0, r=2 -> -2·1.28; A<0, r=2 -> 2·2 (no bound on that side); A>0, r=.5 -> -2·.5; A<0, r=.5 -> 1·0.8
    lp = torch.log(torch.tensor([2.0, 2.0, 0.5, 0.5], dtype=torch.float64)).requires_grad_()
    adv = torch.tensor([2.0, -2.0, 2.0, -1.0], dtype=torch.float64)
    loss, ratio, clipped = ppo_clip(lp, torch.zeros(4, dtype=torch.float64), adv, clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(loss, torch.tensor([-2.56, 4.0, -1.0, 0.8], dtype=torch.float64))
    assert clipped.tolist() == [True, False, False, True]
    torch.testing.assert_close(ratio, torch.tensor([2.0, 2.0, 0.5, 0.5], dtype=torch.float64))
    loss.sum().backward()
    torch.testing.assert_close(lp.grad, torch.tensor([0.0, 4.0, -1.0, 0.0], dtype=torch.float64))


def test_ppo_clip_equals_the_reference_and_its_gradient():
    g = torch.Generator().manual_seed(1)
    lp = (torch.randn(200, generator=g, dtype=torch.float64) * 0.4 - 1).requires_grad_()
    prox = torch.randn(200, generator=g, dtype=torch.float64) * 0.4 - 1
    adv = torch.randn(200, generator=g, dtype=torch.float64)
    loss, _, _ = ppo_clip(lp, prox, adv, clip_low=0.2, clip_high=0.28)
    want = []
    for p, q, a in zip(lp.tolist(), prox.tolist(), adv.tolist(), strict=True):
        r = math.exp(p - q)
        want.append(-min(a * r, a * min(max(r, 0.8), 1.28)))
    torch.testing.assert_close(loss.detach(), torch.tensor(want, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x: ppo_clip(x, prox, adv, clip_low=0.2, clip_high=0.28)[0], (lp,))


def test_kl_k3_by_hand_and_gradient():
    lp = torch.tensor([0.0, math.log(2.0)], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.0, 0.0], dtype=torch.float64)
    # d = -log 2: 1/2 - 1 + log 2
    torch.testing.assert_close(kl_k3(lp, ref), torch.tensor([0.0, math.log(2.0) - 0.5], dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x: kl_k3(x, ref), (lp,))


def test_kl_k3_is_unbiased_over_the_policy():
    logits = torch.randn(2, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logp, logq = torch.log_softmax(logits, -1)
    exact = (logp.exp() * (logp - logq)).sum()
    torch.testing.assert_close((logp.exp() * kl_k3(logp, logq)).sum(), exact)


def test_entropy_by_hand():
    logits = torch.log(torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 1e-30, 1e-30]], dtype=torch.float64))
    torch.testing.assert_close(entropy(logits), torch.tensor([math.log(4), math.log(2)], dtype=torch.float64))


def test_token_tis_by_hand():
    prox = torch.log(torch.tensor([0.5, 0.9, 0.1])).requires_grad_()
    weights = token_tis(prox, torch.log(torch.tensor([0.25, 0.1, 0.2])), cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([2.0, 2.0, 0.5]))
    assert not weights.requires_grad
    # a broken token can't overflow
    assert token_tis(torch.tensor([0.0]), torch.tensor([-1e4]), cap=2.0).item() == 2.0


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("token", [1 / 6, 1 / 6]),
        ("sequence", [1 / 4, 1 / 8]),  # 2 samples of 2 and 4 tokens
        ("constant", [1 / 20, 1 / 20]),
    ],
)
def test_sample_weights_by_hand(name, want):
    got = sample_weights(torch.tensor([2, 4]), name, constant_tokens=10)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


def test_sample_weights_refuse_what_can_not_be_divided():
    with pytest.raises(ValueError, match="constant_tokens"):
        sample_weights(torch.tensor([2, 4]), "constant")
    with pytest.raises(ValueError, match="at least one trained token"):
        sample_weights(torch.tensor([2, 0]), "token")
    with pytest.raises(ValueError, match="unknown denominator 'batch'"):
        sample_weights(torch.tensor([2]), "batch")
