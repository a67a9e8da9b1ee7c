"""The attention operator: rows and layouts anywhere, its kernels on a GPU; blocks compile around it once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.training import compiled, flash
from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import gradients, settings_for

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@settings(max_examples=80, deadline=None)
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=20), few=st.booleans())
def test_rows_hold_every_token_once(lengths, few):
    calls, back = flash.rows_of(lengths, few_lengths=few)
    x = torch.arange(sum(lengths))
    laid = [x.index_select(0, index).view(rows, length) for rows, length, index in calls]
    assert torch.equal(torch.cat([rows.flatten() for rows in laid]).index_select(0, back), x)
    starts = {sum(lengths[:i]): n for i, n in enumerate(lengths)}
    for row in (row for rows in laid for row in rows):
        n = starts.pop(int(row[0]))
        assert row[:n].tolist() == list(range(int(row[0]), int(row[0]) + n)) and n <= len(row)
    assert not starts


def test_few_lengths_are_few_and_near():
    rounded = {flash._rounded(n) for n in range(1, 16385)}
    assert len(rounded) < 90 and {2048, 16384, 1024} <= rounded
    assert all(n <= flash._rounded(n) <= 1.13 * n + 8 for n in range(1, 16385))


def test_a_layout_that_is_gone_is_named():
    layout = flash.make_layout([3, 2], torch.tensor([0, 3, 5], dtype=torch.int32), "written")
    key = flash.remember(layout)
    for _ in range(flash._KEPT):
        flash.remember(layout)
    with pytest.raises(RuntimeError, match="is gone"):
        flash._layout(key)


def test_the_operator_written_out_equals_attention_by_rows(policy_folder):
    samples = make_samples(8)
    _, want = gradients(Trainer(settings_for(policy_folder, kl_coef=0.1)), samples)
    _, got = gradients(Trainer(settings_for(policy_folder, kl_coef=0.1, attention="written")), samples)
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("level", ["none", "selective"])
def test_blocks_are_traced_twice_at_most_for_rows_of_any_size(policy_folder, level, monkeypatch):
    """All blocks share a graph, and neither sequence numbers nor lengths are guarded on."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(compiled, "BACKEND", counter)
    torch._dynamo.reset()
    fields = {"kl_coef": 0.0, "attention": "written", "activation_checkpointing": level}
    eager = Trainer(settings_for(policy_folder, **fields))
    trainer = Trainer(settings_for(policy_folder, compile=True, **fields))
    for count, seed in ((8, 0), (4, 1), (6, 2)):  # of these sizes alone, of any, and one more
        samples = make_samples(count, seed=seed)
        _, want = gradients(eager, samples)
        _, got = gradients(trainer, samples)
        for name, grad in want.items():
            torch.testing.assert_close(got[name], grad, atol=1e-6, rtol=1e-4)
    assert counter.frame_count <= 2
    torch._dynamo.reset()


# On a GPU -------------------------------------------------------------------------------------------------------------


def attend(backend, lengths, q, k, v, grad):
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=q.device)
    key = flash.remember(flash.make_layout(lengths, cu, backend))
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out, _ = torch.ops.kernelmill.packed_attention(*leaves, key, q.shape[-1] ** -0.5)
    out.backward(grad)
    return out.detach(), *(x.grad for x in leaves)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("backend", ["varlen", "cudnn", "cudnn-repeated", "auto"])
@pytest.mark.parametrize("lengths", [[512], [256] * 4, [1000, 13, 1, 64, 900, 870, 2], [1, 1]])
def test_kernels_equal_attention_written_out(backend, lengths, monkeypatch):
    backend, _, repeated = backend.partition("-")
    monkeypatch.setattr(flash, "GROUPED_CUDNN", not repeated)
    g = torch.Generator("cuda").manual_seed(0)
    shapes = ((16, 128), (8, 128), (8, 128), (16, 128))
    inputs = [torch.randn(sum(lengths), *s, generator=g, device="cuda", dtype=torch.bfloat16) for s in shapes]
    got = attend(backend, lengths, *inputs)
    want = attend("written", lengths, *(x.float() for x in inputs))
    for x, y in zip(got, want, strict=True):
        assert torch.isfinite(x).all()
        torch.testing.assert_close(x.float(), y, atol=4e-2, rtol=4e-2)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("want_entropy", [True, False])
def test_head_on_cuda_equals_dense(want_entropy, temperature):
    from core.training.logprobs import chunked_logprobs, fused_loss

    g = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(300, 256, generator=g, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(151936, 256, generator=g, device="cuda") * 0.1).bfloat16().requires_grad_()
    targets = torch.randint(151936, (300,), generator=g, device="cuda")
    logp = torch.log_softmax((hidden @ weight.t()).float() / temperature, -1)
    lp, ent = logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    coef = 0.3 if want_entropy else 0.0
    want = torch.autograd.grad((lp - coef * ent).sum(), (hidden, weight))
    fields = {"chunk_tokens": 128, "want_entropy": want_entropy, "temperature": temperature}
    a, b = chunked_logprobs(hidden, weight, targets, **fields)
    loss, c, d = fused_loss(hidden, weight, targets, lambda x, y, rows: (x - coef * y).sum(), **fields)
    for got in (a, c):
        torch.testing.assert_close(got, lp, atol=1e-4, rtol=1e-5)
    if want_entropy:
        for got in (b, d):
            torch.testing.assert_close(got, ent, atol=1e-3, rtol=1e-4)
    for scalar in ((a - coef * b).sum(), loss):
        for x, y in zip(torch.autograd.grad(scalar, (hidden, weight)), want, strict=True):
            torch.testing.assert_close(x.float(), y.float(), atol=3e-2, rtol=3e-2)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("fields", [{}, {"compile": True}, {"compile": True, "activation_checkpointing": "selective"}])
def test_a_step_on_cuda_is_near_the_step_in_float32(policy_folder, fields):
    samples = make_samples(8)
    on_cpu = Trainer(settings_for(policy_folder, kl_coef=0.1)).step(samples)
    on_gpu = Trainer(settings_for(policy_folder, kl_coef=0.1, device="cuda", dtype="bfloat16", **fields)).step(samples)
    for name in ("entropy", "kl_behaviour", "grad_norm"):
        assert on_gpu[name] == pytest.approx(on_cpu[name], rel=5e-2, abs=5e-3), name
    assert on_gpu["applied"] == 1 and on_gpu["peak_gib"] > 0 and not on_gpu.get("compile_retry")
