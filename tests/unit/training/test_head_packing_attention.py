"""The chunked head against the dense one, the plan and its rows, and attention that stays within its sequence."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.objectives import entropy
from core.episodes.samples import Sample
from core.training.attention import attention_kwargs, register
from core.training.logprobs import chunked_logprobs
from core.training.packing import longest_sample, pack, plan, refusal


def sample(n=6, trained=3, **fields):
    mask = np.zeros(n, np.uint8)
    mask[n - trained :] = 1
    values = {
        "group_id": "a", "index": 0, "turn": 0, "role": "generator", "ret": 1.0, "mask": mask,
        "ids": np.arange(1, n + 1, dtype=np.int32), "logprobs": np.where(mask, -0.5, 0).astype(np.float32),
        "versions": np.where(mask, 3, -1).astype(np.int32),
    }  # fmt: skip
    return Sample(**{**values, **fields})


@pytest.mark.parametrize(("tokens", "vocab", "chunk"), [(37, 50, 8), (5, 151936, 2), (4, 11, 100)])
def test_chunked_head_equals_dense(tokens, vocab, chunk):
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 16, generator=g).requires_grad_()
    weight = (torch.randn(vocab, 16, generator=g) * 0.3).requires_grad_()
    targets = torch.randint(vocab, (tokens,), generator=g)
    a, b = torch.randn(2, tokens, generator=g)

    lp, ent = chunked_logprobs(hidden, weight, targets, chunk_tokens=chunk)
    got = torch.autograd.grad((a * lp + b * ent).sum(), (hidden, weight))
    logits = hidden @ weight.t()
    dense_lp = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    want = torch.autograd.grad((a * dense_lp + b * entropy(logits)).sum(), (hidden, weight))

    torch.testing.assert_close(lp, dense_lp, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ent, entropy(logits), atol=1e-5, rtol=1e-5)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("width", "spread"), [(16, 0.0), (16, 0.02), (16, 0.3), (64, 0.3), (64, 1.0)])
def test_float32_is_within_1e_5_of_the_truth_for_a_large_vocabulary(width, spread):
    """Flat distributions too: the entropy is near 12 nats there, and 152k terms round."""
    g = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(33, width, generator=g), torch.randn(151936, width, generator=g) * spread
    targets = torch.randint(151936, (33,), generator=g)
    lp, ent = chunked_logprobs(hidden, weight, targets, chunk_tokens=16)
    logp = torch.log_softmax((hidden @ weight.t()).double(), -1)
    truth = -(logp.exp() * logp).sum(-1)
    assert float((lp - logp.gather(1, targets[:, None])[:, 0]).abs().max()) < 1e-5
    assert float((ent - truth).abs().max()) < 5e-6
    assert float((entropy(hidden @ weight.t()) - truth).abs().max()) < 5e-6


def test_chunked_head_without_entropy_and_without_tokens():
    hidden, weight = torch.randn(0, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    lp, ent = chunked_logprobs(hidden, weight, torch.zeros(0, dtype=torch.int64), want_entropy=False)
    (lp.sum() + 0).backward()
    assert lp.shape == ent.shape == (0,) and weight.grad.abs().sum() == 0 and not ent.requires_grad


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 100), max_size=40), ranks=st.integers(1, 4), budget=st.integers(1, 400))
def test_plan_holds_every_sample_once_and_packs_within_the_budget(lengths, ranks, budget):
    """What is longer than the budget is alone in its row, and all ranks have as many rows."""
    bins = plan(lengths, budget_tokens=budget, ranks=ranks)
    assert len(bins) == ranks and len({len(rank) for rank in bins}) == 1
    assert sorted(i for rank in bins for micro in rank for i in micro) == list(range(len(lengths)))
    assert all(len(micro) == 1 or sum(lengths[i] for i in micro) <= budget for rank in bins for micro in rank)
    assert sum(not micro for micro in bins[0]) == 0 or len(bins[0]) == 1 or max(lengths) > budget


def test_plan_balances_ranks():
    lengths = [1000, 10, 10, 10, 500, 500, 990, 980, 20, 20]
    bins = plan(lengths, budget_tokens=1100, ranks=2, quadratic_tokens=2000)
    work = [sum(lengths[i] * (1 + lengths[i] / 2000) for micro in rank for i in micro) for rank in bins]
    assert max(work) / min(work) < 1.05


def test_packed_row_by_hand():
    a = sample(5, 3)
    b = sample(3, 1, ids=np.array([7, 8, 9], np.int32))
    row = pack([a, b], [0.5, -1.0], [0.25, 0.125])
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 7, 8, 9]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert row.cu_seqlens.tolist() == [0, 5, 8] and row.lengths == (5, 3)
    assert row.picked.tolist() == [1, 2, 3, 6] and row.targets.tolist() == [3, 4, 5, 9]
    assert row.advantages.tolist() == [0.5, 0.5, 0.5, -1.0] and row.weights.tolist() == [0.25, 0.25, 0.25, 0.125]
    assert row.versions.tolist() == [3] * 4 and row.behaviour.tolist() == [-0.5] * 4
    assert pack([], [], []).weights.tolist() == [0.0]


def test_refusals_are_named_and_counted():
    bad_lp = np.array([0, 0, 0, np.nan, -1, -1], np.float32)
    rows = {
        "longer_than_context": sample(101),
        "empty_completion": sample(6, 0),
        "first_token_trained": sample(6, 6),
        "non_finite": sample(6, 3, logprobs=bad_lp),
        "columns_differ": sample(6, 3, versions=np.zeros(5, np.int32)),
    }
    assert {reason: refusal(row, 100) for reason, row in rows.items()} == {reason: reason for reason in rows}
    assert refusal(sample(6, 3, ret=float("inf")), 100) == "non_finite"
    assert refusal(sample(2, 1), 100) is None and refusal(sample(101)) is None


def test_the_longest_sample_is_what_the_policy_could_have_read():
    from types import SimpleNamespace

    plain = SimpleNamespace(max_position_embeddings=4096)
    scaled = SimpleNamespace(max_position_embeddings=4096, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert longest_sample(plain) == 4096 and longest_sample(scaled) == 16384
    assert longest_sample(plain, 512) == longest_sample(scaled, 512) == 512
    assert longest_sample(SimpleNamespace()) is None


@pytest.fixture(scope="module")
def model():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=128, attn_implementation=register(),
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def hidden_of(model, embeds, lengths):
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths])
    return model.model(
        inputs_embeds=embeds[None], position_ids=positions[None], use_cache=False,
        **attention_kwargs(lengths, cu, torch.float32),
    ).last_hidden_state[0]  # fmt: skip


def test_packed_rows_equal_single_sequences(model):
    lengths = [7, 40, 1, 33, 12]  # several SDPA calls, and a sequence of one token
    parts = [torch.randn(n, 32) for n in lengths]
    packed = hidden_of(model, torch.cat(parts), lengths).split(lengths)
    for part, got in zip(parts, packed, strict=True):
        want = model.model(inputs_embeds=part[None], use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


def test_no_gradient_crosses_a_border(model):
    lengths = [7, 40, 5, 33]
    embeds = torch.randn(sum(lengths), 32, requires_grad=True)
    hidden_of(model, embeds, lengths).split(lengths)[2].square().sum().backward()
    touched = [part.abs().sum().item() > 0 for part in embeds.grad.split(lengths)]
    assert touched == [False, False, True, False]
    # causal within the sequence: the first token's output depends on itself alone
    embeds.grad = None
    hidden_of(model, embeds, lengths)[7].square().sum().backward()
    assert embeds.grad.abs().sum(-1).nonzero().flatten().tolist() == [7]
