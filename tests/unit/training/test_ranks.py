"""Two gloo ranks in real processes do what one rank does, wait without a collective, and fail together."""

import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist

from core.checkpoints import store
from core.training.ranks import RankFailed, RankGroup, decode_samples, encode_samples
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from core.weights import filesystem
from tests.unit.training.conftest import make_samples


def test_samples_survive_the_wire():
    samples = make_samples(3)
    for got, want in zip(decode_samples(encode_samples(samples)), samples, strict=True):
        for name in ("ids", "mask", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
            assert getattr(got, name).dtype == getattr(want, name).dtype
        assert (got.ret, got.group_id, got.index) == (want.ret, want.group_id, want.index)


def test_a_helper_ends_when_its_parent_is_killed():
    child = (
        "import os, time; from core.training.lifeline import die_with_parent; die_with_parent(os.getppid());"
        "print('ready', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
    parent.kill()
    parent.communicate(timeout=60)  # returns when the pipe closes: the child, which holds its other end, is gone


@pytest.fixture(scope="module")
def two(policy_folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        group = RankGroup(settings_for(policy_folder, ranks=2))
    yield group
    group.close()


def settings_for(folder, ranks=1):
    return TrainerSettings(
        model=folder, dtype="float32", device="cpu", lr=1e-3, kl_coef=0.1, proximal="behaviour", max_tokens_per_rank=64,
        grad_clip=0.05, ranks=ranks,
    )  # fmt: skip


def test_two_ranks_equal_one(policy_folder, two, tmp_path):
    batches = [
        make_samples(11, seed=1),
        make_samples(2, seed=2),
    ]  # several micro-batches a rank; then one rank has none
    one = RankGroup(settings_for(policy_folder))
    want = [one.step(batch) for batch in batches]
    got = [two.step(batch) for batch in batches]
    assert two.version == one.version == 2 and want[0]["micro_batches"] > 2
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
    assert want[0]["grad_norm"] > one.settings.grad_clip  # clipping is over all ranks

    manifests = [group.publish(tmp_path / name) for group, name in ((one, "one"), (two, "two"))]
    first, second = (filesystem.read(tmp_path / name / "v000002") for name in ("one", "two"))
    assert manifests[0].tensors == manifests[1].tensors == len(first) and "lm_head.weight" not in first
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-5)


def test_a_checkpoint_continues_with_another_number_of_ranks(policy_folder, two, tmp_path):
    one = Trainer(settings_for(policy_folder))
    one.step(make_samples(8, seed=3))
    extra = two.load(store.commit(one.save(tmp_path / "a", log_position=5)))
    assert extra.log_position == 5 and two.version == 1
    for trainer in (one, two):
        trainer.step(make_samples(8, seed=4))
    back = Trainer(settings_for(policy_folder))
    back.load(store.commit(two.save(tmp_path / "b", incarnation=1, consumed=store.pack_ids(["ab" * 16]))))
    assert back.version == 2
    for name, tensors in {"weights": one.model.full_tensors(), "optimizer": one.optimizer_tensors()}.items():
        loaded = dict(back.model.full_tensors() if name == "weights" else back.optimizer_tensors())
        for key, want in tensors:
            torch.testing.assert_close(loaded[key], want, atol=1e-5, rtol=1e-5)


def test_a_batch_that_is_refused_costs_no_rank(two):
    samples, before = make_samples(4, seed=5), two.version
    for refused in (two.step, two.prepare):
        with pytest.raises(ValueError, match="is in the batch twice"):
            refused([samples[0], *samples])
    numbers = two.step([])
    assert numbers["refused_step/nothing_to_train_on"] == 1.0 and two.version == before
    assert two.step(samples)["applied"] == 1.0 and two.version == before + 1


def test_batches_made_ahead_on_every_rank(policy_folder, two, tmp_path):
    one = Trainer(settings_for(policy_folder))
    two.load(store.commit(one.save(tmp_path)))
    dropped, wanted = two.prepare(make_samples(6, seed=7)), two.prepare(make_samples(9, seed=8))
    assert dropped.number + 1 == wanted.number
    later = two.prepare(make_samples(5, seed=9))  # while `wanted` trains, say
    for batch, seed, count in ((wanted, 8, 9), (later, 9, 5)):
        got, want = two.step(batch), one.step(make_samples(count, seed=seed))
        assert got["samples"] == want["samples"] == count
        assert (got["loss"], got["grad_norm"]) == pytest.approx((want["loss"], want["grad_norm"]), abs=1e-5)


def test_snapshots_of_two_ranks_are_of_their_moment(policy_folder, two, tmp_path):
    one = Trainer(settings_for(policy_folder))
    two.load(store.commit(one.save(tmp_path / "start")))
    for group in (one, two):
        group.step(make_samples(8, seed=3))
    want, taken, weights = dict(one.model.full_tensors()), two.take_checkpoint(log_position=4), two.take_weights()
    two.step(make_samples(8, seed=4))
    loaded = store.load(store.commit(taken.write(tmp_path / "c")))
    assert (loaded.extra.version, loaded.extra.log_position) == (1, 4)
    weights.publish(tmp_path / "w")
    published = filesystem.read(tmp_path / "w" / "v000001")
    for name, tensor in want.items():
        torch.testing.assert_close(loaded.weights[name], tensor, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(published[name], tensor, atol=1e-5, rtol=1e-5)


def test_a_lost_rank_fails_the_group(two):
    os.kill(two._processes[0].pid, signal.SIGKILL)
    two._processes[0].wait()
    with pytest.raises(RankFailed, match=r"rank 1 .* ended with code -9"):
        two.step(make_samples(4))
    two.close()
    with pytest.raises(RankFailed, match="closed"):
        two.step(make_samples(4))


def test_ranks_that_are_told_to_leave_end_well(policy_folder):
    """A thread of theirs waits for the next batch: the interpreter's end would abort them."""
    with RankGroup(settings_for(policy_folder, ranks=2)) as group:
        assert group.step(make_samples(4))["applied"] == 1
    assert [process.returncode for process in group._processes] == [0]


IDLE_S, DEADLINE_S = 7.0, 4.0


def test_idle_ranks_outlive_the_deadline_of_collectives(policy_folder, monkeypatch):
    """Waiting for a batch, and without a micro-batch of its own; and the deadline is in force: a collective that nobody
    joins does run into it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = msgspec.structs.replace(settings_for(policy_folder, ranks=2), collective_timeout_s=DEADLINE_S)
    with RankGroup(settings) as group:
        assert group.step(make_samples(8))["applied"] == 1
        threading.Event().wait(IDLE_S)  # nobody sets it: for so long the run has no batch
        numbers = group.step(make_samples(1, seed=2))  # one sample: the other rank has a row of no weight
        assert (numbers["applied"], numbers["samples"]) == (1, 1)
        started = time.monotonic()
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            dist.all_reduce(torch.zeros(1))
        assert time.monotonic() - started < 60
