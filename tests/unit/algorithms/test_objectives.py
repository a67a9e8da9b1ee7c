"""Objectives against loops in plain Python, numbers by hand, and gradients by finite differences."""

import math

import pytest
import torch
from torch import Tensor

from core.algorithms.objectives import cispo, decoupled_ppo, dppo, gspo, policy_gradient, ppo_clip

F64 = torch.float64
SEQUENCE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
MASK = torch.tensor([1, 0, 1, 1, 1, 1, 1, 0, 0, 1], dtype=torch.bool)


def logs(*probabilities: float) -> Tensor:
    return torch.log(torch.tensor(probabilities, dtype=F64))


def draw(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    pi, p, mu = (-2 * torch.rand(10, generator=g, dtype=F64) - 0.05 for _ in range(3))
    return pi, p, mu, torch.randn(10, generator=g, dtype=F64)


def clip_loss(r: float, a: float, low: float, high: float, dual: float | None) -> float:
    loss = -min(a * r, a * min(max(r, 1 - low), 1 + high))
    return min(loss, -a * dual) if dual is not None and a < 0 else loss


def finite_difference(loss, at: Tensor) -> Tensor:
    """Central differences of a scalar loss."""
    out, h = torch.zeros_like(at), 1e-6
    for i in range(len(at)):
        step = torch.zeros_like(at)
        step[i] = h
        out[i] = (loss(at + step) - loss(at - step)) / (2 * h)
    return out


def gradient(loss, at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    return torch.autograd.grad(loss(x).sum(), x)[0]


@pytest.mark.parametrize("dual", [None, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_ppo_and_dual_clip_equal_a_loop(seed, dual):
    pi, p, _, adv = draw(seed)
    got = ppo_clip(pi, p, adv, clip_low=0.2, clip_high=0.28, dual_clip=dual, mask=MASK)
    for t in range(10):
        r = math.exp(pi[t] - p[t])
        want = clip_loss(r, float(adv[t]), 0.2, 0.28, dual) if MASK[t] else 0.0
        assert float(got.loss[t]) == pytest.approx(want, abs=1e-12)
        if MASK[t]:
            assert bool(got.held[t]) == (want != pytest.approx(-float(adv[t]) * r, abs=1e-12))

    def loss(x):
        return ppo_clip(x, p, adv, clip_low=0.2, clip_high=0.28, dual_clip=dual, mask=MASK).loss.sum()

    torch.testing.assert_close(gradient(loss, pi), finite_difference(loss, pi), atol=1e-7, rtol=1e-6)


def test_dual_clip_by_hand():
    # ratios 2, 2, 0.5, A 2, -2, 2, c 1.5: -2·1.2; min(4, 3) = 3; -1
    got = ppo_clip(
        logs(1.0, 1.0, 0.5) + math.log(0.5),
        logs(0.25, 0.25, 0.5),
        torch.tensor([2.0, -2.0, 2.0], dtype=F64),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=1.5,
    )
    torch.testing.assert_close(got.loss, torch.tensor([-2.4, 3.0, -1.0], dtype=F64))
    assert got.held.tolist() == [True, True, False]


def test_cispo_by_hand_keeps_a_gradient_beyond_the_bound():
    pi = logs(0.5, 0.5, 0.1).requires_grad_()
    got = cispo(pi, logs(0.1, 0.4, 0.5), torch.tensor([1.0, -2.0, 1.0], dtype=F64), clip_low=0.5, clip_high=1.0)
    # ratios 5, 1.25, 0.2 -> weights 2, 1.25, 0.5
    want = [-2 * math.log(0.5), 2 * 1.25 * math.log(0.5), -0.5 * math.log(0.1)]
    torch.testing.assert_close(got.loss, torch.tensor(want, dtype=F64))
    assert got.held.tolist() == [True, False, True]
    got.loss.sum().backward()
    torch.testing.assert_close(pi.grad, torch.tensor([-2.0, 2.5, -0.5], dtype=F64))


def test_policy_gradient_by_hand():
    pi = logs(0.5, 0.2).requires_grad_()
    got = policy_gradient(pi, logs(0.1, 0.4), torch.tensor([1.0, -2.0], dtype=F64), cap=1.02)
    torch.testing.assert_close(got.loss, torch.tensor([-1.02 * math.log(0.5), 2 * 0.5 * math.log(0.2)], dtype=F64))
    got.loss.sum().backward()
    torch.testing.assert_close(pi.grad, torch.tensor([-1.02, 1.0], dtype=F64))


@pytest.mark.parametrize("function", [cispo, policy_gradient])
@pytest.mark.parametrize("seed", range(3))
def test_weighted_log_probs_equal_a_loop(function, seed):
    pi, p, _, adv = draw(seed)
    kwargs = {"clip_low": 0.3, "clip_high": 0.4} if function is cispo else {"cap": 1.4}
    got = function(pi, p, adv, mask=MASK, **kwargs)
    weight = []
    for t in range(10):
        r = math.exp(pi[t] - p[t])
        r = min(max(r, 0.7), 1.4) if function is cispo else min(r, 1.4)
        weight.append(r if MASK[t] else 0.0)
    want = torch.tensor([-w * a * x for w, a, x in zip(weight, adv.tolist(), pi.tolist(), strict=True)], dtype=F64)
    torch.testing.assert_close(got.loss, want)

    def loss(x):  # the weight held still, as the objective holds it
        return (-torch.tensor(weight, dtype=F64) * adv * x).sum()

    got_gradient = gradient(lambda x: function(x, p, adv, mask=MASK, **kwargs).loss, pi)
    torch.testing.assert_close(got_gradient, finite_difference(loss, pi), atol=1e-7, rtol=1e-6)


def test_gspo_by_hand():
    # sequence 0: ratios 2 and 0.5 -> geometric mean 1; sequence 1: one token, ratio 1.1, over the bound 1.05
    pi = logs(0.4, 0.2, 0.55).requires_grad_()
    got = gspo(
        pi,
        logs(0.2, 0.4, 0.5),
        torch.tensor([1.0, 1.0, 3.0], dtype=F64),
        torch.tensor([0, 0, 1]),
        clip_low=0.05,
        clip_high=0.05,
    )
    torch.testing.assert_close(got.loss, torch.tensor([-1.0, -1.0, -3.15], dtype=F64))
    assert got.held.tolist() == [False, False, True]
    got.loss.sum().backward()
    torch.testing.assert_close(pi.grad, torch.tensor([-1.0, -1.0, 0.0], dtype=F64))


@pytest.mark.parametrize("seed", range(4))
def test_gspo_equals_the_sequence_objective_and_its_gradient(seed):
    pi, p, _, adv = draw(seed)
    adv = adv[:3]

    def reference(x: Tensor) -> Tensor:  # (1/S) Σ_i clip(s_i, A_i), one sequence at a time
        total = torch.zeros((), dtype=F64)
        for i in range(3):
            at = [t for t in range(10) if SEQUENCE[t] == i and MASK[t]]
            s = math.exp(sum(float(x[t] - p[t]) for t in at) / len(at))
            total += clip_loss(s, float(adv[i]), 0.1, 0.1, None) / 3
        return total

    lengths = [sum(bool(SEQUENCE[t] == i and MASK[t]) for t in range(10)) for i in range(3)]
    weight = torch.tensor([1 / (3 * lengths[i]) for i in SEQUENCE.tolist()], dtype=F64)

    def ours(x: Tensor) -> Tensor:
        return (weight * gspo(x, p, adv[SEQUENCE], SEQUENCE, clip_low=0.1, clip_high=0.1, mask=MASK).loss).sum()

    torch.testing.assert_close(ours(pi), reference(pi))
    torch.testing.assert_close(gradient(ours, pi), finite_difference(reference, pi), atol=1e-7, rtol=1e-6)


def test_dppo_by_hand():
    # moved +0.3 with A>0: dropped; moved +0.05 (ratio 6) kept; moved -0.3 with A<0: dropped; moved -0.3 with A>0: kept
    pi = logs(0.8, 0.06, 0.5, 0.5).requires_grad_()
    adv = torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=F64)
    got = dppo(pi, logs(0.5, 0.01, 0.8, 0.8), adv, low=0.2, high=0.2)
    torch.testing.assert_close(got.loss, torch.tensor([0.0, -6.0, 0.0, -0.625], dtype=F64))
    assert got.held.tolist() == [True, False, True, False]
    got.loss.sum().backward()
    torch.testing.assert_close(pi.grad, torch.tensor([0.0, -6.0, 0.0, -0.625], dtype=F64))


@pytest.mark.parametrize("seed", range(4))
def test_dppo_equals_a_loop(seed):
    pi, _, mu, adv = draw(seed)

    def reference(x: Tensor) -> Tensor:
        total = torch.zeros((), dtype=F64)
        for t in range(10):
            moved = math.exp(pi[t]) - math.exp(mu[t])  # at the point itself, not at the neighbours that differences use
            if MASK[t] and not (moved > 0.15 if adv[t] > 0 else moved < -0.1):
                total += -adv[t] * math.exp(x[t] - mu[t])
        return total

    def ours(x: Tensor) -> Tensor:
        return dppo(x, mu, adv, low=0.1, high=0.15, mask=MASK).loss.sum()

    torch.testing.assert_close(ours(pi), reference(pi))
    torch.testing.assert_close(gradient(ours, pi), finite_difference(reference, pi), atol=1e-7, rtol=1e-6)


def test_dppo_cap_bounds_the_gradient():
    pi = logs(0.06).requires_grad_()
    dppo(pi, logs(0.01), torch.ones(1, dtype=F64), cap=2.0).loss.sum().backward()
    assert pi.grad.tolist() == [-2.0]


@pytest.mark.parametrize(("beyond", "weights"), [("cut", [1.5, 2.0, 0.5]), ("masked", [1.5, 0.0, 0.5])])
def test_decoupled_ppo_by_hand(beyond, weights):
    # p/μ 1.5, 4, 0.5 with cap 2; π/p 1, 1, 2 with A 1 and bound 1.2
    pi, p, mu = logs(0.3, 0.4, 0.2), logs(0.3, 0.4, 0.1), logs(0.2, 0.1, 0.2)
    got = decoupled_ppo(pi, p, mu, torch.ones(3, dtype=F64), clip_low=0.2, clip_high=0.2, cap=2.0, beyond_cap=beyond)
    want = [-w * r for w, r in zip(weights, [1.0, 1.0, 1.2], strict=True)]
    torch.testing.assert_close(got.loss, torch.tensor(want, dtype=F64))


@pytest.mark.parametrize("seed", range(3))
def test_decoupled_ppo_equals_a_loop_and_its_gradient(seed):
    pi, p, mu, adv = draw(seed)

    def reference(x: Tensor) -> Tensor:
        total = torch.zeros((), dtype=F64)
        for t in range(10):
            if MASK[t]:
                clip = clip_loss(math.exp(x[t] - p[t]), float(adv[t]), 0.2, 0.28, 3.0)
                total += min(math.exp(p[t] - mu[t]), 1.3) * clip
        return total

    def ours(x: Tensor) -> Tensor:
        return decoupled_ppo(x, p, mu, adv, clip_low=0.2, clip_high=0.28, dual_clip=3.0, cap=1.3, mask=MASK).loss.sum()

    torch.testing.assert_close(ours(pi), reference(pi))
    torch.testing.assert_close(gradient(ours, pi), finite_difference(reference, pi), atol=1e-7, rtol=1e-6)


def test_settings_that_mean_nothing_are_refused():
    x = torch.zeros(1)
    with pytest.raises(ValueError, match=r"dual_clip must be above 1, got 0\.5"):
        ppo_clip(x, x, x, clip_low=0.2, clip_high=0.2, dual_clip=0.5)
    with pytest.raises(ValueError, match="cap must be positive, got 0"):
        policy_gradient(x, x, x, cap=0.0)
    with pytest.raises(ValueError, match="unknown beyond_cap 'drop'"):
        decoupled_ppo(x, x, x, x, clip_low=0.2, clip_high=0.2, beyond_cap="drop")
    with pytest.raises(ValueError, match=r"mask must be bool \(1,\)"):
        ppo_clip(x, x, x, clip_low=0.2, clip_high=0.2, mask=torch.ones(1))
