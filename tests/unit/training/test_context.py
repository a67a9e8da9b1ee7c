"""Samples that lie on several ranks: every token once, and the same loss and gradients as on one rank."""

import json
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.episodes.samples import Sample
from core.training import flash
from core.training.batch import make_batch
from core.training.context import Split, attention, attention_backward
from core.training.context_part import part
from core.training.packing import pack
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from tests.unit.training.conftest import VOCAB
from tests.unit.training.rank_worker import step
from tests.unit.training.recipes import shift
from tests.unit.training.test_trainer import settings_for


def long_samples(lengths, seed=0, prompt=2):
    """Samples of exactly these lengths, in groups of 4, trained in pieces so that some chunk holds no trained token.
    prompt: tokens before the first trained one; below 0: of the completion at the end."""
    g = np.random.default_rng(seed)
    out = []
    for i, n in enumerate(lengths):
        mask = (g.random(n) < 0.6).astype(np.uint8)
        mask[:prompt] = 0
        mask[-1] = 1
        if n > 60:
            mask[n // 4 : n // 2 + 1] = 0
        out.append(
            Sample(
                group_id=f"g{i // 4}", index=i % 4, turn=0, role="generator", mask=mask,
                ids=g.integers(0, VOCAB, n, dtype=np.int32),
                logprobs=np.where(mask, g.normal(-4.2, 0.3, n), 0).astype(np.float32),
                versions=np.where(mask, g.integers(-2, 1, n), -1).astype(np.int32),
                ret=float(g.choice([0.0, 0.1, 0.3, 1.3])),
            )
        )  # fmt: skip
    return out


@settings(max_examples=60, deadline=None)
@given(n=st.integers(3, 200), world=st.integers(1, 5), multiple=st.sampled_from([1, 2, 3, 8]), seed=st.integers(0, 9))
def test_parts_hold_every_token_and_every_position_once(n, world, multiple, seed):
    row = pack(long_samples([n], seed), [0.5], [0.25])
    parts = [part(row, rank, world, multiple=multiple) for rank in range(world)]
    assert len({p.tokens for p in parts}) == 1 and parts[0].tokens % multiple == 0
    ids, seen = torch.full((parts[0].tokens * world,), -1), []
    for p in parts:
        assert (ids[p.position_ids] == -1).all()
        ids[p.position_ids] = p.ids
        real = p.weights > 0
        assert real.all() or len(real) == 1
        seen += zip(p.position_ids[p.picked][real].tolist(), p.targets[real].tolist(), p.behaviour[real].tolist(),
                    p.versions[real].tolist(), p.weights[real].tolist(), strict=True)  # fmt: skip
    assert torch.equal(ids[:n], row.ids) and (ids[n:] == 0).all()
    assert sorted(seen) == sorted(
        zip(row.picked.tolist(), row.targets.tolist(), row.behaviour.tolist(), row.versions.tolist(),
            row.weights.tolist(), strict=True)
    )  # fmt: skip


def test_chunks_of_equal_work_by_hand():
    row = pack(long_samples([7]), [1.0], [1.0])
    first, second = (part(row, rank, 2) for rank in (0, 1))
    assert first.position_ids.tolist() == [0, 1, 6, 7] and second.position_ids.tolist() == [2, 3, 4, 5]
    assert first.split.ends() == (2, 8) and second.split.ends() == (4, 6)
    with pytest.raises(ValueError, match="one at a time"):
        part(pack(long_samples([4, 5]), [1.0, 1.0], [1.0, 1.0]), 0, 2)


def _backward(scale, *x):
    return flash._written_one_backward(*x, scale)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_attention_of_parts_is_attention_of_the_whole(world, monkeypatch):
    """Ranks one after the other in this process, what they would gather handed to them."""
    n, scale = 12 * world, 8**-0.5
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(n, heads, 8, dtype=torch.float64) for heads in (4, 2, 2, 4))
    out, lse = flash._written_one(q, k, v, scale)
    want = flash._written_one_backward(grad, q, k, v, out, lse, scale)
    splits = [Split(rank, world, 6) for rank in range(world)]
    at = [split.positions() for split in splits]
    monkeypatch.setattr(Split, "gather", lambda self, *mine: (k, v))
    summed = []
    monkeypatch.setattr(Split, "scatter", lambda self, dk, dv: summed.append((dk, dv)) or (dk, dv))
    for split, here in zip(splits, at, strict=True):
        got, got_lse = attention(split, lambda *x: flash._written_one(*x, scale), q[here], k[here], v[here])
        torch.testing.assert_close(got, out[here])
        torch.testing.assert_close(got_lse, lse[:, here])
        dq, _, _ = attention_backward(
            split,
            lambda *x: flash._written_one_backward(*x, scale),
            grad[here],
            q[here],
            k[here],
            v[here],
            got,
            got_lse,
        )
        torch.testing.assert_close(dq, want[0][here])
    for i, whole in enumerate(want[1:]):
        torch.testing.assert_close(sum(parts[i] for parts in summed).double(), whole, atol=1e-5, rtol=1e-5)


KL_REWARD = {"kl_in": "reward", "kl_estimator": "k1"}
ANSWER = -3
"""Tokens of short completions: those of a long sample all lie on one rank, and the other has none."""
JOBS: dict[str, tuple[list[int], dict]] = {
    "long and short": ([90, 11, 30, 64, 17, 128, 50, 9], {}),
    "long alone": ([100], {"activation_checkpointing": "full"}),
    "odd": ([65, 127, 3], {"pack_multiple": 16}),
    "too long for both": ([129, 40, 20, 80], {"head": "recompute", "activation_checkpointing": "selective"}),
    "KL in the reward": ([90, 11, 30, 70, 70, 9], KL_REWARD),
    "KL in the reward, short answers": ([90, 11, 128, 70, 70, 9], KL_REWARD),
}
FIELDS = {"kl_coef": 0.1, "context_parallel": True, "max_tokens_per_rank": 64, "grad_clip": 100.0, "entropy_coef": 0.01}


@pytest.fixture(scope="module")
def answers(policy_folder, tmp_path_factory):
    """{job: (settings, prompt, metrics, gradients)} of rank 0 of two; the policy has left its reference."""
    folder = tmp_path_factory.mktemp("context")
    jobs = []
    for name, (lengths, more) in JOBS.items():
        fields = json.loads(msgspec.json.encode(settings_for(policy_folder, ranks=2, **FIELDS, **more)))
        jobs.append([name, fields, len(name), lengths, ANSWER if "short answers" in name else 2])
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.unit.training.context_worker"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*command, str(rank), "2", str(folder)], env=env) for rank in (0, 1)]
    try:
        assert [rank.wait(280) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    got = torch.load(folder / "answers.pt")
    return {name: (fields, prompt, *got[name]) for name, fields, _, _, prompt in jobs}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(JOBS))
def test_two_ranks_that_share_samples_equal_one(answers, name):
    fields, prompt, b, grads = answers[name]
    lengths = JOBS[name][0]
    fields = fields | {"ranks": 1, "context_parallel": False, "max_tokens_per_rank": 128}
    alone = Trainer(msgspec.convert(fields, TrainerSettings))
    shift(alone, norm=1.0)
    a, want = step(alone, long_samples(lengths, len(name), prompt))
    assert a.get("refused/longer_than_context", 0) == b.get("refused/longer_than_context", 0) == (max(lengths) > 128)
    for figure in ("loss", "grad_norm", "kl", "entropy", "ratio_mean", "ratio_max", "tokens", "lag_mean", "ess",
                   "advantage_abs_mean"):  # fmt: skip
        assert b[figure] == pytest.approx(a[figure], abs=1e-5), figure
    assert want.keys() == grads.keys() and b["applied"] == 1 and 0 <= b["filling_share"] < 0.6
    for key, grad in want.items():
        torch.testing.assert_close(grads[key], grad, atol=1e-5, rtol=1e-4)


def test_what_lies_where():
    fields = settings_for("", ranks=2, **FIELDS)
    samples = long_samples([90, 11, 30, 129, 64, 301])
    more = {"vocab": VOCAB, "context_tokens": 300}
    batches = [make_batch(samples, fields, rank=rank, world=2, **more) for rank in (0, 1)]
    assert [b.shared for b in batches] == [2, 2] and [b.bins[:2] for b in batches] == [[[0], [3]]] * 2
    assert batches[0].refused == {"longer_than_context": 1}
    assert sum(b.tokens for b in batches) == 90 + 11 + 30 + 129 + 64
    assert all(row.split is not None for b in batches for row in list(b.rows())[:2])
    alone = make_batch(samples, fields, rank=0, world=1, **more)
    assert alone.shared == 0 and alone.refused == {"longer_than_context": 1} and [0] in alone.bins and [3] in alone.bins


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"objective": "gspo"}, "gspo"),
        ({"advantage": "reinforce_plus_plus"}, "reinforce_plus_plus"),
        ({"corrections": [{"name": "sequence_mask", "low": 0.5, "high": 2.0}]}, "sequence_mask"),
    ],
)
def test_losses_of_whole_samples_are_refused(fields, word):
    with pytest.raises(ValueError, match=f"context_parallel.*{word}"):
        settings_for("", context_parallel=True, **fields)
