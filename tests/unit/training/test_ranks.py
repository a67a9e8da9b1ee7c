"""Two gloo ranks in real processes do what one rank does, wait without a collective, and fail together."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from core.training.ranks import RankFailed, RankGroup, _Call, decode_call, encode_call
from core.training.settings import TrainerSettings
from core.weights import filesystem
from tests.unit.training.conftest import make_samples


def test_calls_survive_the_wire():
    samples = make_samples(3)
    call = decode_call(encode_call(_Call("step", samples, {"keep": 2})))
    assert call.method == "step" and call.keywords == {"keep": 2} and call.samples is not None
    for got, want in zip(call.samples, samples, strict=True):
        for name in ("ids", "mask", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
            assert getattr(got, name).dtype == getattr(want, name).dtype
        assert (got.ret, got.group_id, got.index) == (want.ret, want.group_id, want.index)


def test_a_helper_ends_when_its_parent_is_killed():
    child = (
        "import os, sys, time; from core.training.lifeline import die_with_parent; die_with_parent(os.getppid());"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == b""  # the pipe closes when the child, which holds its other end, is gone
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_two_ranks_equal_one_and_die_together(policy_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = TrainerSettings(
        model=policy_folder, dtype="float32", device="cpu", lr=1e-3, kl_coef=0.1, proximal="behaviour",
        max_tokens_per_rank=64, grad_clip=0.05,
    )  # fmt: skip
    batches = [make_samples(11, seed=1), make_samples(2, seed=2)]  # three micro-batches each; then one rank has none
    one = RankGroup(settings)
    want = [one.step(batch) for batch in batches]
    one.publish(tmp_path / "one")

    two = RankGroup(TrainerSettings(**{**{f: getattr(settings, f) for f in settings.__struct_fields__}, "ranks": 2}))
    try:
        got = [two.step(batch) for batch in batches]
        assert two.version == 2
        two.publish(tmp_path / "two")
        for a, b in zip(want, got, strict=True):
            for name in (
                "loss",
                "grad_norm",
                "kl",
                "entropy",
                "ratio_mean",
                "ratio_max",
                "tokens",
                "clip_share",
                "lag_mean",
            ):
                assert b[name] == pytest.approx(a[name], abs=1e-5), name
        assert want[0]["grad_norm"] > settings.grad_clip  # clipping is over all ranks
        first, second = (filesystem.read(tmp_path / name / "v000002") for name in ("one", "two"))
        assert first.keys() == second.keys() and "lm_head.weight" not in first
        for name in first:
            torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-5)

        os.kill(two._processes[0].pid, signal.SIGKILL)
        two._processes[0].wait()
        with pytest.raises(RankFailed, match=r"rank 1 .* ended with code -9"):
            two.step(batches[0])
    finally:
        two.close()
    with pytest.raises(RankFailed, match="closed"):
        two.step(batches[0])
