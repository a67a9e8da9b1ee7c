"""The head in all its ways against the dense one; and that no way holds the logits of all tokens."""

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.training.logprobs import chunked_logprobs, chunks, fused_loss


def case(tokens, vocab, seed=0, width=16):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=g).requires_grad_()
    weight = (torch.randn(vocab, width, generator=g) * 0.3).requires_grad_()
    return hidden, weight, torch.randint(vocab, (tokens,), generator=g), torch.randn(2, tokens, generator=g)


def dense(hidden, weight, targets, temperature=1.0):
    logp = torch.log_softmax((hidden @ weight.t()).double() / temperature, -1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def clipped(lp, old, advantage):
    ratio = (lp - old).exp()
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))


@pytest.mark.parametrize(("tokens", "vocab", "chunk"), [(130, 50, 64), (3, 151936, 2), (5, 11, 100), (1, 7, 1)])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_fused_loss_equals_dense(tokens, vocab, chunk, entropy_coef, temperature):
    hidden, weight, targets, (shift, advantage) = case(tokens, vocab)
    want_lp, want_ent = dense(hidden, weight, targets, temperature)
    old = (want_lp.detach() + 0.3 * shift).float()
    want = (clipped(want_lp, old, advantage) - entropy_coef * want_ent).sum()
    want_grads = torch.autograd.grad(0.5 * want, (hidden, weight))

    def loss_of(lp, ent, rows):
        per_token = clipped(lp, old[rows], advantage[rows])
        return (per_token - entropy_coef * ent if entropy_coef else per_token).sum()

    loss, lp, ent = fused_loss(hidden, weight, targets, loss_of, chunk_tokens=chunk, temperature=temperature)
    grads = torch.autograd.grad(0.5 * loss, (hidden, weight))
    assert not lp.requires_grad and not ent.requires_grad
    for got, wanted in zip((loss, lp, ent, *grads), (want, want_lp, want_ent, *want_grads), strict=True):
        torch.testing.assert_close(got.double(), wanted.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cache_gib", [0.0, 1.5 * 64 * 50 * 4 / 2**30, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_kept_logits_change_nothing_and_a_second_backward_is_right(cache_gib, temperature):
    hidden, weight, targets, (a, b) = case(190, 50)
    lp, ent = chunked_logprobs(
        hidden, weight, targets, chunk_tokens=64, cache_gib=cache_gib, temperature=temperature
    )  # fmt: skip
    loss = (a * lp + b * ent).sum()
    want_lp, want_ent = dense(hidden, weight, targets, temperature)
    want = torch.autograd.grad((a * want_lp + b * want_ent).sum(), (hidden, weight))
    for _ in range(2):
        got = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


class LargestRows(TorchDispatchMode):
    """The most rows of any tensor that is as wide as the vocabulary."""

    def __init__(self, vocab):
        super().__init__()
        self.vocab, self.rows = vocab, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor) and x.ndim == 2 and x.shape[1] == self.vocab:
                self.rows = max(self.rows, x.shape[0])
        return out


@pytest.mark.parametrize("way", ["fused", "recompute"])
def test_logits_of_all_tokens_never_exist(way):
    hidden, weight, targets, _ = case(500, 997)
    with LargestRows(997) as seen:
        if way == "fused":
            fused_loss(hidden, weight, targets, lambda lp, ent, rows: (lp + ent).sum(), chunk_tokens=64)[0].backward()
        else:
            lp, ent = chunked_logprobs(hidden, weight, targets, chunk_tokens=64)
            (lp + ent).sum().backward()
    assert 0 < seen.rows <= 64


def test_no_tokens_and_wrong_shapes():
    hidden, weight, targets, _ = case(0, 9)
    loss, lp, _ = fused_loss(hidden, weight, targets, lambda lp, ent, rows: lp.sum())
    loss.backward()
    assert lp.shape == (0,) and weight.grad.abs().sum() == 0
    with pytest.raises(ValueError, match=r"targets is \[tokens\] = \[0\]"):
        fused_loss(hidden, weight, torch.zeros(2, dtype=torch.int64), lambda lp, ent, rows: lp.sum())
    with pytest.raises(ValueError, match="of one type"):
        chunked_logprobs(hidden.double(), weight, targets)
    with pytest.raises(ValueError, match="chunk_tokens"):
        chunked_logprobs(hidden, weight, targets, chunk_tokens=0)
    with pytest.raises(ValueError, match="temperature"):
        chunked_logprobs(hidden, weight, targets, temperature=0.0)


@pytest.mark.parametrize(("tokens", "most"), [(0, 4), (1, 4), (16385, 2048), (130, 64), (64, 64), (65, 64), (7, 3)])
def test_chunks_cover_all_rows_once(tokens, most):
    rows = [i for s in chunks(tokens, most) for i in range(tokens)[s]]
    assert rows == list(range(tokens)) and all(0 < s.stop - s.start <= most for s in chunks(tokens, most))


INTERPRETED = """
import torch
from core.training import head_kernels, logprobs
g = torch.Generator().manual_seed(0)
for rows, vocab, factor in ((3, 5000, 1.0), (2, 4096, 0.7), (1, 17, 1.6), (3, 4099, 1 / 0.6)):
    z = torch.randn(rows, vocab, generator=g) * 4
    z[0] += 60.0
    targets = torch.randint(vocab, (rows,), generator=g)
    got, want = [[torch.zeros(rows) for _ in range(3)] for _ in range(2)]
    head_kernels.statistics(z, targets, *got, True, factor)
    logprobs._statistics(z, targets, *want, True, factor)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)
    gl, ge = torch.randn(2, rows, generator=g)
    for slope in (None, ge):
        b = logprobs._gradient_(z.clone(), targets, want[1], want[2], gl, slope, factor)
        a = head_kernels.gradient_(z.clone(), targets, want[1], want[2], gl, slope, factor)
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
z = torch.randn(2, 50, generator=g)
z[1, 3] = torch.nan
lp, lse, ent = (torch.zeros(2) for _ in range(3))
head_kernels.statistics(z, torch.tensor([1, 2]), lp, lse, ent, True)
assert lp[0].isfinite() and lp[1].isnan() and ent[1].isnan()
print("agreed")
"""


def test_kernels_agree_with_torch_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "agreed", done.stderr[-2000:]
