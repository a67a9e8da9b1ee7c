"""On a GPU: copies run on a stream of their own, updates wait for them, and ranks on NCCL outlive its deadline."""

import threading

import msgspec
import pytest
import torch

from core.checkpoints import store
from core.training.ranks import RankGroup
from core.training.trainer import Trainer
from core.weights import filesystem
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def settings(folder, **fields):
    return settings_for(folder, **{"device": "cuda", "dtype": "bfloat16", "kl_coef": 0.0, "lr": 5e-2, **fields})


@pytest.mark.parametrize("shard", ["auto", "always"])
def test_snapshots_hold_their_moment_while_steps_run(policy_folder, shard, tmp_path):
    with RankGroup(settings(policy_folder, shard=shard)) as group:
        for version in range(1, 6):
            group.step(group.prepare(make_samples(8, seed=version)))
            want = {name: t.clone() for name, t in group.trainer.model.full_tensors()}
            state = {name: t.clone() for name, t in group.trainer.optimizer_tensors()}
            torch.cuda._sleep(200_000_000)  # what comes after stands behind this in the step's stream
            taken, weights = group.take_checkpoint(), group.take_weights()
            group.step(make_samples(8, seed=10 + version))
            loaded = store.load(taken.write(tmp_path / "c"))
            assert loaded.extra.version == 2 * version - 1
            assert all(torch.equal(loaded.weights[name], t) for name, t in want.items())
            assert all(torch.equal(loaded.optimizer[name], t) for name, t in state.items())
            manifest = weights.publish(tmp_path / "w")
            read = filesystem.read(filesystem.version_folder(tmp_path / "w", manifest.version))
            assert all(torch.equal(read[name], t.bfloat16()) for name, t in want.items())


def test_rows_prepared_by_another_thread_are_pinned(policy_folder):
    trainer = Trainer(settings(policy_folder))
    made = []
    thread = threading.Thread(target=lambda: made.append(trainer.prepare(make_samples(12))))
    thread.start()
    thread.join()
    assert all(row.ids.is_pinned() and row.weights.is_pinned() for row in made[0].rows)
    assert trainer.step(made[0])["applied"] == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_idle_ranks_outlive_the_deadline_of_nccl(policy_folder):
    short = msgspec.structs.replace(settings(policy_folder, ranks=2), collective_timeout_s=10.0)
    with RankGroup(short) as group:
        assert group.step(make_samples(8))["applied"] == 1
        threading.Event().wait(25.0)  # nobody sets it: for so long the run has no batch
        assert group.step(make_samples(1, seed=2))["applied"] == 1
