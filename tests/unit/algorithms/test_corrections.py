"""Corrections, the log-linear proximal policy and the KL estimators against loops and by hand."""

import math

import pytest
import torch

from core.algorithms import corrections as c
from core.algorithms.kl import kl, kl_ratio_weighted, kl_reward
from core.algorithms.ratios import loglinear_proximal

F64 = torch.float64
SEQUENCE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
MASK = torch.tensor([1, 0, 1, 1, 1, 1, 1, 0], dtype=torch.bool)


def draw(seed):
    g = torch.Generator().manual_seed(seed)
    p = -torch.rand(8, generator=g, dtype=F64)
    return p, p + 0.4 * torch.randn(8, generator=g, dtype=F64), torch.randn(8, generator=g, dtype=F64)


def loop(p, mu, rule):
    """rule(ρ of the token, [ρ of the sequence's trained tokens]) for every trained token."""
    rho = [math.exp(a - b) for a, b in zip(p.tolist(), mu.tolist(), strict=True)]
    out = []
    for t in range(8):
        whole = [rho[k] for k in range(8) if SEQUENCE[k] == SEQUENCE[t] and MASK[k]]
        out.append(float(rule(rho[t], whole)) if MASK[t] else 0.0)
    return torch.tensor(out, dtype=F64)


RULES = {
    "token_tis": (lambda p, mu: c.token_tis(p, mu, 1.2, floor=0.7, mask=MASK), lambda r, _: min(max(r, 0.7), 1.2)),
    "icepop": (lambda p, mu: c.icepop(p, mu, 0.7, 1.2, mask=MASK), lambda r, _: r if 0.7 <= r <= 1.2 else 0),
    "token_mask": (lambda p, mu: c.token_mask(p, mu, 0.7, 1.2, mask=MASK), lambda r, _: 0.7 <= r <= 1.2),
    "sequence_tis": (
        lambda p, mu: c.sequence_tis(p, mu, SEQUENCE, 1.2, mask=MASK),
        lambda _, w: min(math.prod(w), 1.2),
    ),
    "geometric": (
        lambda p, mu: c.sequence_mask(p, mu, SEQUENCE, 0.8, 1.1, mask=MASK),
        lambda _, w: 0.8 <= math.prod(w) ** (1 / len(w)) <= 1.1,
    ),
    "product": (
        lambda p, mu: c.sequence_mask(p, mu, SEQUENCE, 0.8, 1.1, aggregate="product", mask=MASK),
        lambda _, w: 0.8 <= math.prod(w) <= 1.1,
    ),
    "token_veto": (lambda p, mu: c.token_veto(p, mu, SEQUENCE, 0.7, mask=MASK), lambda _, w: min(w) >= 0.7),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(5))
def test_corrections_equal_a_loop(name, seed):
    p, mu, _ = draw(seed)
    ours, rule = RULES[name]
    torch.testing.assert_close(ours(p, mu), loop(p, mu, rule))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_trained_token_that_is_no_number_gets_weight_0_and_never_nan(name, bad):
    p, mu, _ = draw(3)
    mu[3] = bad  # sequence 1
    got = RULES[name][0](p, mu)
    assert torch.isfinite(got).all()
    assert got[3] == 0
    about_sequences = name in ("sequence_tis", "geometric", "product", "token_veto")
    assert not about_sequences or got[4] == 0
    clean = mu.clone()
    clean[3] = p[3]
    others = [0, 2, 5, 6]
    torch.testing.assert_close(got[others], RULES[name][0](p, clean)[others])
    assert c.combine({name: got}, p, mu, mask=MASK).not_finite == 1


@pytest.mark.parametrize("name", RULES)
def test_masked_tokens_are_not_looked_at(name):
    p, mu, _ = draw(4)
    want = RULES[name][0](p, mu)
    for bad in (float("nan"), float("inf"), 1e30):
        q, nu = p.clone(), mu.clone()
        q[~MASK] = bad
        nu[~MASK] = -bad
        assert torch.equal(RULES[name][0](q, nu), want)


def test_off_policy_sequence_mask_by_hand():
    # mean of log μ - log π: 1 in sequence 0, 0 in sequence 1
    pi, mu = torch.tensor([-2.0, -1.0, -1.0]), torch.tensor([-1.0, 0.0, -1.0])
    got = c.off_policy_sequence_mask(pi, mu, torch.tensor([-1.0, 1.0, -1.0]), torch.tensor([0, 0, 1]), 0.5)
    assert got.tolist() == [0.0, 1.0, 1.0]


def test_combine_by_hand():
    p, mu = torch.log(torch.tensor([0.5, 0.5, 0.5])), torch.log(torch.tensor([0.1, 0.5, 0.25]))
    mask = torch.tensor([True, True, True])
    got = c.combine({"tis": c.token_tis(p, mu, 1.5), "mask": c.token_mask(p, mu, 0.5, 3.0)}, p, mu, mask=mask)
    torch.testing.assert_close(got.weights, torch.tensor([0.0, 1.0, 1.5]))
    assert (got.masked_tokens, got.masked_by_any, got.not_finite, got.tokens) == ({"tis": 0, "mask": 1}, 1, 0, 3)


def test_a_product_over_a_long_sequence_does_not_overflow():
    p, mu = torch.zeros(5000), torch.full((5000,), -1.0)
    assert c.sequence_tis(p, mu, torch.zeros(5000, dtype=torch.int64), 2.0).unique().tolist() == [2.0]


def test_bounds_that_mean_nothing_are_refused():
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="0 <= low <= high, got low 2 and high 1"):
        c.icepop(x, x, 2, 1)
    with pytest.raises(ValueError, match="unknown aggregate 'mean'"):
        c.sequence_mask(x, x, torch.zeros(1, dtype=torch.int64), 0.5, 2.0, aggregate="mean")


def test_loglinear_proximal_by_hand():
    # current version 6, proximal 5. sampled at 3: α = 2/3; at 5: p is μ; at 6 (a rollback's leftover): p is μ
    pi, mu = torch.tensor([-1.0, -1.0, -1.0], dtype=F64), torch.tensor([-4.0, -2.0, -3.0], dtype=F64)
    versions = torch.tensor([3, 5, 6], dtype=torch.int32)
    got = loglinear_proximal(pi, mu, versions, proximal_version=5, current_version=6)
    torch.testing.assert_close(got, torch.tensor([-2.0, -2.0, -3.0], dtype=F64))
    torch.testing.assert_close(loglinear_proximal(pi, mu, versions, proximal_version=6, current_version=6), pi)
    with pytest.raises(ValueError, match="can't be older"):
        loglinear_proximal(pi, mu, versions, proximal_version=7, current_version=6)


def test_kl_by_hand():
    pi, ref = torch.tensor([math.log(0.5)], dtype=F64), torch.tensor([math.log(0.25)], dtype=F64)
    log2 = math.log(2)
    assert float(kl(pi, ref, "k1")) == pytest.approx(log2)
    assert float(kl(pi, ref, "k2")) == pytest.approx(log2 * log2 / 2)
    assert float(kl(pi, ref, "k3")) == pytest.approx(0.5 - 1 + log2)
    assert float(kl_reward(pi, ref, 0.1)) == pytest.approx(-0.1 * log2)
    assert float(kl(torch.zeros(1), torch.full((1,), 50.0), "k3", ceiling=10.0)) == 10.0
    assert math.isfinite(float(kl(torch.zeros(1), torch.full((1,), 500.0), "k3")))


def policies(seed=0):
    z = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return z[0].clone().requires_grad_(), torch.log_softmax(z[1], -1), torch.log_softmax(z[2], -1)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_ratio_weighted_kl_is_unbiased_in_value_and_gradient_off_policy(name):
    z, mu, ref = policies()
    logp = torch.log_softmax(z, -1)
    exact = (logp.exp() * (logp - ref)).sum()
    estimate = (mu.exp() * kl_ratio_weighted(logp, mu, ref, name)).sum()  # the mean over samples of μ
    torch.testing.assert_close(estimate, exact)
    got, want = torch.autograd.grad(estimate, z, retain_graph=True)[0], torch.autograd.grad(exact, z)[0]
    torch.testing.assert_close(got, want)


def test_gradients_of_k2_and_k3_in_the_loss_are_those_of_the_two_directions():
    z, _, ref = policies(1)
    logp = torch.log_softmax(z, -1)
    for name, exact in (("k2", (logp.exp() * (logp - ref)).sum()), ("k3", (ref.exp() * (ref - logp)).sum())):
        estimate = (logp.detach().exp() * kl(logp, ref, name)).sum()
        got, want = (
            torch.autograd.grad(estimate, z, retain_graph=True)[0],
            torch.autograd.grad(exact, z, retain_graph=True)[0],
        )
        torch.testing.assert_close(got, want)


def test_kl_gradients_equal_finite_differences():
    g = torch.Generator().manual_seed(2)
    x = (-torch.rand(6, generator=g, dtype=F64)).requires_grad_()
    ref, mu = -torch.rand(6, generator=g, dtype=F64), -torch.rand(6, generator=g, dtype=F64)
    for name in ("k2", "k3"):
        assert torch.autograd.gradcheck(lambda y, n=name: kl(y, ref, n), (x,))
        assert torch.autograd.gradcheck(lambda y, n=name: kl_ratio_weighted(y, mu, ref, n), (x,))


def test_k1_in_a_loss_is_refused():
    with pytest.raises(ValueError, match="gradient of mean zero"):
        kl(torch.zeros(1, requires_grad=True), torch.zeros(1), "k1")
    with pytest.raises(ValueError, match="unknown KL estimator 'k4'"):
        kl(torch.zeros(1), torch.zeros(1), "k4")
