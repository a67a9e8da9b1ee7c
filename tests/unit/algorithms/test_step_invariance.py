"""The loss of a step depends on its samples alone: not on micro-batches, packing order, ranks or masked values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms import corrections, objectives
from core.algorithms.denominators import Totals, sample_weights, totals
from core.algorithms.diagnostics import COLUMNS, bin_names, summary, sums_by_lag
from core.algorithms.kl import kl
from core.algorithms.segments import screen, sequence_of

F64 = torch.float64
NAMES = {
    "ppo_clip": lambda x, s, q, m: objectives.ppo_clip(
        x, s["old"], s["adv"], clip_low=0.2, clip_high=0.28, dual_clip=3.0, mask=m
    ),
    "gspo": lambda x, s, q, m: objectives.gspo(x, s["old"], s["adv"], q, clip_low=0.1, clip_high=0.1, mask=m),
    "cispo": lambda x, s, q, m: objectives.cispo(x, s["old"], s["adv"], mask=m),
    "dppo": lambda x, s, q, m: objectives.dppo(x, s["mu"], s["adv"], mask=m),
    "policy_gradient": lambda x, s, q, m: objectives.policy_gradient(x, s["mu"], s["adv"], cap=1.02, mask=m),
    "decoupled_ppo": lambda x, s, q, m: objectives.decoupled_ppo(
        x, s["old"], s["mu"], s["adv"], clip_low=0.2, clip_high=0.28, cap=2.0, mask=m
    ),
}
COLUMN_NAMES = ("new", "old", "mu", "ref", "adv")


def samples(seed, count=6):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        n = int(torch.randint(1, 8, (1,), generator=g))
        row = {name: -2 * torch.rand(n, generator=g, dtype=F64) for name in COLUMN_NAMES}
        row["adv"] = torch.randn(1, generator=g, dtype=F64).expand(n).clone()
        row["mask"] = torch.rand(n, generator=g) < 0.7
        row["mask"][-1] = True
        out.append(row)
    return out


def step(rows, objective, denominator, bins):
    """(loss, gradient of every sample), summed over micro-batches; each micro-batch packs its samples in bin order."""
    trained = torch.tensor([int(row["mask"].sum()) for row in rows])
    rollout = torch.arange(len(rows)) // 2
    weights = sample_weights(trained, denominator, constant_tokens=50, rollout=rollout)
    leaves = [row["new"].clone().requires_grad_() for row in rows]
    loss = torch.zeros((), dtype=F64)
    for members in bins:
        packed = {name: torch.cat([rows[i][name] for i in members]) for name in (*COLUMN_NAMES, "mask")}
        sequence = sequence_of(torch.tensor([len(leaves[i]) for i in members]))
        x, mask = torch.cat([leaves[i] for i in members]), packed["mask"]
        weight = corrections.token_tis(packed["old"], packed["mu"], 2.0, mask=mask)
        weight = weight * corrections.sequence_mask(packed["old"], packed["mu"], sequence, 0.5, 2.0, mask=mask)
        token = weight * NAMES[objective](x, packed, sequence, mask).loss + 0.01 * kl(x, packed["ref"], mask=mask)
        part = (weights[torch.tensor(members)][sequence] * token).sum()
        part.backward()
        loss += part.detach()
    return loss, leaves


@pytest.mark.parametrize("objective", NAMES)
@pytest.mark.parametrize("denominator", ["token", "sequence", "constant", "rollout"])
def test_micro_batches_and_packing_order_change_nothing(objective, denominator):
    rows = samples(1)
    want, leaves = step(rows, objective, denominator, [[0, 1, 2, 3, 4, 5]])
    for bins in ([[5, 2], [0], [1, 4, 3]], [[i] for i in range(6)], [[5, 4, 3, 2, 1, 0]]):
        got, others = step(rows, objective, denominator, bins)
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)
        for a, b in zip(leaves, others, strict=True):
            torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(objective=st.sampled_from(sorted(NAMES)), seed=st.integers(0, 50),
       bad=st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e30, 0.0]))  # fmt: skip
def test_values_of_masked_tokens_change_nothing(objective, seed, bad):
    rows = samples(seed)
    want, leaves = step(rows, objective, "token", [[0, 1, 2], [3, 4, 5]])
    for row in rows:
        for name in COLUMN_NAMES:
            row[name][~row["mask"]] = bad
    got, others = step(rows, objective, "token", [[0, 1, 2], [3, 4, 5]])
    assert torch.equal(got, want)
    for row, a, b in zip(rows, leaves, others, strict=True):
        assert torch.equal(a.grad, b.grad)
        assert not a.grad[~row["mask"]].any()


@pytest.mark.parametrize("objective", NAMES)
def test_a_trained_nan_stays_visible_until_it_is_screened_out_and_counted(objective):
    (row,) = samples(3, count=1)
    row["mask"][:] = True
    row["new"][0] = float("nan")
    sequence = torch.zeros(len(row["new"]), dtype=torch.int64)
    assert not torch.isfinite(NAMES[objective](row["new"], row, sequence, row["mask"]).loss).all()
    mask, counts = screen(row["mask"], logprobs=row["new"], behaviour=row["mu"])
    assert counts == {"logprobs": 1, "behaviour": 0}
    assert torch.isfinite(NAMES[objective](row["new"], row, sequence, mask).loss).all()


@pytest.mark.parametrize("objective", NAMES)
def test_a_row_without_trained_tokens_gives_zero(objective):
    (row,) = samples(4, count=1)
    sequence, mask = torch.zeros(len(row["new"]), dtype=torch.int64), torch.zeros(len(row["new"]), dtype=torch.bool)
    assert not NAMES[objective](row["new"], row, sequence, mask).loss.any()


def test_rollout_denominator_by_hand():
    # rollout 0 in two rows of 1 and 3 tokens, rollout 1 in one row of 2: each rollout counts one half
    got = sample_weights(torch.tensor([1, 2, 3]), "rollout", rollout=torch.tensor([7, 9, 7]))
    torch.testing.assert_close(got, torch.tensor([1 / 8, 1 / 4, 1 / 8], dtype=F64))
    with pytest.raises(ValueError, match="needs the rollout of every sample"):
        sample_weights(torch.tensor([1]), "rollout")


@pytest.mark.parametrize("denominator", ["token", "sequence", "constant", "rollout"])
def test_ranks_that_hold_their_own_samples_get_the_same_weights_from_the_added_totals(denominator):
    lengths, rollout = torch.tensor([3, 1, 4, 1, 5, 9]), torch.tensor([0, 0, 1, 2, 2, 3])
    want = sample_weights(lengths, denominator, constant_tokens=50, rollout=rollout)
    parts = [slice(0, 3), slice(3, 6)]
    local = [totals(lengths[p], rollouts=len(rollout[p].unique())) for p in parts]
    whole = Totals(*(sum(column) for column in zip(*local, strict=True)))
    got = [sample_weights(lengths[p], denominator, constant_tokens=50, rollout=rollout[p], step=whole) for p in parts]
    torch.testing.assert_close(torch.cat(got), want)


def test_sums_by_lag_by_hand_and_over_micro_batches():
    pi, mu = torch.log(torch.tensor([0.2, 0.4, 0.1, 0.3])), torch.log(torch.tensor([0.2, 0.2, 0.2, 0.1]))
    versions, mask = torch.tensor([7, 4, 4, -1]), torch.tensor([True, True, True, False])
    kwargs = {"held": torch.tensor([False, True, False, True]), "weights": torch.tensor([1.0, 0.0, 0.5, 9.0]),
              "entropies": torch.tensor([1.0, 2.0, 4.0, 8.0]), "mask": mask}  # fmt: skip
    total = sums_by_lag(pi, mu, versions, 7, **kwargs)
    got = summary(total)
    assert got["lag/0/tokens"] == 1 and got["lag/0/ratio_mean"] == pytest.approx(1.0)
    assert got["lag/3-4/share"] == pytest.approx(2 / 3) and got["lag/3-4/ratio_mean"] == pytest.approx(1.25)
    assert got["lag/3-4/clip_share"] == 0.5 and got["lag/3-4/masked_share"] == 0.5 and got["lag/3-4/entropy"] == 3.0
    assert got["lag/3-4/kl_k1"] == pytest.approx(0.0, abs=1e-6) and got["lag/3-4/weight_mean"] == 0.25
    assert got["ess"] == pytest.approx(3.5**2 / (3 * (1 + 4 + 0.25)))
    assert not any(name.startswith("lag/1/") for name in got)
    parts = [
        sums_by_lag(pi[p], mu[p], versions[p], 7, **{name: value[p] for name, value in kwargs.items()})
        for p in (slice(0, 2), slice(2, 4))
    ]
    torch.testing.assert_close(parts[0] + parts[1], total)
    assert total.shape == (len(bin_names()), len(COLUMNS)) and summary(torch.zeros_like(total)) == {}
