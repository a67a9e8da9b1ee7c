"""Two phases, damage, retention, export; and a resumed run that can't be told from one that never stopped."""

import json
import os
import shutil
from functools import partial

import pytest
import torch

from core.checkpoints import store
from core.checkpoints.export import export_huggingface
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from core.weights.shards import write_tensors
from tests.unit.training.conftest import make_samples, policy_folder  # noqa: F401 - a fixture


def settings_for(folder, **fields):
    base = {"model": folder, "dtype": "float32", "device": "cpu", "lr": 2e-3, "kl_coef": 0.05, "warmup_steps": 3,
            "schedule": "cosine", "schedule_steps": 9, "weight_decay": 0.01, "max_tokens_per_rank": 128}  # fmt: skip
    return TrainerSettings(**{**base, **fields})


def written(folder, step=1, consumed=()):
    return store.write(
        folder, step, weights=[("w", torch.arange(4.0))], optimizer=[("w.step", torch.tensor(1.0))],
        random={"torch": torch.get_rng_state()}, model="m", dtype="bfloat16",
        extra=store.Extra(version=step, log_position=7, incarnation=2, consumed=store.pack_ids(consumed)),
    )  # fmt: skip


def flip(path):
    """One bit of its last byte."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_written_then_committed(tmp_path):
    ids = ["00" * 16, "ab" * 16]
    path = written(tmp_path, 10, ids)
    assert path.name == "step-000010.written" and store.latest_committed(tmp_path) is None
    assert store.verify(path).step == 10
    final = store.commit(path)
    assert final == tmp_path / "step-000010" == store.latest_committed(tmp_path)
    assert store.commit(path) == final  # repeated after a crash between the rename and its fact
    loaded = store.load(final)
    assert loaded.extra.log_position == 7 and loaded.extra.incarnation == 2 and loaded.extra.version == 10
    assert loaded.extra.consumed_ids() == set(ids) and loaded.weights["w"].tolist() == [0, 1, 2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000010"]


def test_writing_again_replaces_and_a_crash_while_writing_leaves_nothing(tmp_path):
    written(tmp_path, 3, ["11" * 16])
    again = written(tmp_path, 3)
    assert store.load(again).extra.consumed == b""

    def dies():
        yield "w", torch.zeros(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(
            tmp_path, 4, weights=dies(), optimizer=[], random={}, extra=store.Extra(version=4), model="", dtype=""
        )
    assert not (tmp_path / "step-000004.written").exists() and store.committed(tmp_path) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "manifest"])
def test_damage_is_found_and_named(tmp_path, damage):
    path = written(tmp_path, 1, ["22" * 16])
    victim = path / "weights.safetensors"
    if damage == "flip":
        flip(victim)
    elif damage == "cut":
        os.truncate(victim, 10)
    elif damage == "missing":
        victim.unlink()
    else:
        (path / "manifest.json").write_bytes(b'{"model": "\xff"}')
    with pytest.raises(store.Damaged, match=r"manifest\.json" if damage == "manifest" else r"weights\.safetensors"):
        store.verify(path)


def test_only_the_files_asked_for_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "write_tensors", partial(write_tensors, max_shard_bytes=8))
    path = store.write(
        tmp_path, 1, weights=[("a", torch.ones(2)), ("b", torch.ones(2))], optimizer=[], random={},
        extra=store.Extra(version=1), model="m", dtype="float32",
    )  # fmt: skip
    shard = path / "weights-00002-of-00002.safetensors"
    flip(shard)
    store.verify(path, ("state", "consumed"))
    with pytest.raises(store.Damaged, match=shard.name):
        store.verify(path, ("weights",))


@pytest.mark.parametrize("victim", ["weights.safetensors", "optimizer.safetensors", "consumed.bin", "state.json"])
def test_a_changed_byte_sets_a_checkpoint_aside(tmp_path, victim):
    for step in (1, 2):
        store.commit(written(tmp_path, step, ["33" * 16]))
    flip(store.step_folder(tmp_path, 2) / victim)
    ((step, aside, why),) = store.set_damaged_aside(tmp_path)
    assert (step, aside.name) == (2, "step-000002.damaged") and victim in why
    assert store.latest_committed(tmp_path) == store.step_folder(tmp_path, 1)


def test_a_position_that_was_changed_keeps_no_log(tmp_path):
    """What the log is trimmed by would be another number than the run stood at."""
    for step in (1, 2):
        store.commit(written(tmp_path, step))
    state = store.step_folder(tmp_path, 1) / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"log_position":7', b'"log_position":9'))
    assert store.kept_from(tmp_path) == 7


def test_retention_keeps_the_newest_and_drops_what_was_never_committed(tmp_path):
    for step in (1, 2, 3):
        store.commit(written(tmp_path, step))
    written(tmp_path, 2)
    written(tmp_path, 5)
    gone = store.retain(tmp_path, keep=2)
    assert {p.name for p in gone} == {"step-000001", "step-000002.written"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000003", "step-000005.written"]


def test_bad_requests_are_refused(tmp_path):
    with pytest.raises(ValueError, match="16 bytes each"):
        store.Extra(version=1, consumed=b"123")
    with pytest.raises(ValueError, match=r"step-N\.written"):
        store.commit(tmp_path / "step-000001")
    with pytest.raises(FileNotFoundError, match="nothing to commit"):
        store.commit(tmp_path / "step-000001.written")


def state_of(trainer):
    tensors = {**dict(trainer.model.full_tensors()), **{f"opt {n}": t for n, t in trainer.optimizer_tensors()}}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_resume_is_bit_for_bit(policy_folder, tmp_path):  # noqa: F811
    batches = [make_samples(8, seed=i) for i in range(4)]
    straight = Trainer(settings_for(policy_folder))
    numbers = [straight.step(batch) for batch in batches]

    first = Trainer(settings_for(policy_folder))
    for batch in batches[:2]:
        first.step(batch)
    path = store.commit(first.save(tmp_path, log_position=11, consumed=store.pack_ids(["ab" * 16])))
    drawn = torch.rand(3)

    second = Trainer(settings_for(policy_folder))
    extra = second.load(path)
    assert extra.log_position == 11 and extra.version == second.version == 2
    assert torch.equal(torch.rand(3), drawn)
    resumed = [second.step(batch) for batch in batches[2:]]
    for a, b in zip(numbers[2:], resumed, strict=True):
        assert {k: v for k, v in a.items() if not k.endswith("_s")} == {
            k: v for k, v in b.items() if not k.endswith("_s")
        }
    want, got = state_of(straight), state_of(second)
    assert want.keys() == got.keys() and all(torch.equal(want[name], got[name]) for name in want)


def test_export_is_loaded_by_transformers(policy_folder, tmp_path):  # noqa: F811
    from transformers import AutoModelForCausalLM

    start = tmp_path / "start"
    shutil.copytree(policy_folder, start)
    (start / "chat_template.jinja").write_text("{{ messages }}")
    trainer = Trainer(settings_for(str(start)))
    trainer.step(make_samples(8))
    path = trainer.save(tmp_path / "checkpoints")
    out = export_huggingface(path, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(out)
    for (name, want), (_, got) in zip(trainer.model.named_masters(), model.named_parameters(), strict=True):
        assert torch.equal(want.detach(), got), name
    assert (out / "chat_template.jinja").exists() and json.loads((out / "config.json").read_text())["vocab_size"] == 64
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        export_huggingface(path, tmp_path / "x", model=tmp_path)
