"""Files that are written after later steps hold the moment they were taken at; batches made ahead change nothing."""

import importlib.util
import threading

import msgspec
import pytest
import torch

from core.checkpoints import store
from core.training.ranks import RankGroup
from core.training.trainer import Trainer
from core.weights import filesystem
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for, weights_of

RECIPES = [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "float32", "advantage": "gae", "baseline": "none"}]
if importlib.util.find_spec("peft") is not None:
    RECIPES += [{"dtype": "float32", "lora_rank": 4, "lora_alpha": 8.0}]
each = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: "-".join(map(str, recipe.values())))


def trainer_of(folder, recipe, steps=2):
    made = Trainer(settings_for(folder, lr=5e-2, kl_coef=0.1, **recipe))
    for seed in range(steps):
        made.step(make_samples(8, seed=seed))
    return made


def files(path):
    """{name: (bytes, sha256)}"""
    return {name: (entry.bytes, entry.sha256) for name, entry in store.read_manifest(path).files.items()}


@each
def test_a_checkpoint_written_after_later_steps_is_that_of_its_moment(policy_folder, recipe, tmp_path):
    want = trainer_of(policy_folder, recipe).save(tmp_path / "at_once", log_position=7)
    trainer = trainer_of(policy_folder, recipe)
    taken = trainer.take_checkpoint(log_position=7)
    for seed in (8, 9):
        trainer.step(make_samples(8, seed=seed))
    got = taken.write(tmp_path / "later")
    assert got.name == want.name == "step-000002.written"
    kept = {name for name in files(want) if not name.startswith("random")}  # the generator's state at that moment
    assert {n: files(got)[n] for n in kept} == {n: files(want)[n] for n in kept}


@each
def test_weights_published_after_later_steps_are_those_of_their_version(policy_folder, recipe, tmp_path):
    want = trainer_of(policy_folder, recipe).publish(tmp_path / "at_once")
    trainer = trainer_of(policy_folder, recipe)
    taken = trainer.take_weights()
    trainer.step(make_samples(8, seed=9))
    got = taken.publish(tmp_path / "later")
    assert (got.version, got.fingerprint) == (2, want.fingerprint)
    read = [filesystem.read(filesystem.version_folder(tmp_path / name, 2)) for name in ("at_once", "later")]
    assert all(torch.equal(read[1][name], tensor) for name, tensor in read[0].items())


@each
def test_a_run_resumed_from_it_is_the_same_bit_by_bit(policy_folder, recipe, tmp_path):
    whole = trainer_of(policy_folder, recipe, steps=1)
    taken = whole.take_checkpoint()
    writing = threading.Thread(target=taken.write, args=(tmp_path,))
    writing.start()
    for seed in (1, 2):
        whole.step(make_samples(8, seed=seed))
    writing.join()
    resumed = Trainer(whole.settings)
    resumed.load(store.commit(tmp_path / "step-000001.written"))
    for seed in (1, 2):
        resumed.step(make_samples(8, seed=seed))
    if not recipe.get("lora_rank"):  # of these, the weights are sums that are made anew
        after = weights_of(resumed)
        assert all(torch.equal(after[name], tensor) for name, tensor in weights_of(whole).items())
    state = dict(resumed.optimizer_tensors())
    assert all(torch.equal(state[name], tensor) for name, tensor in whole.optimizer_tensors())


def test_a_snapshot_is_never_taken_over_one_that_is_not_written(policy_folder, tmp_path):
    trainer = trainer_of(policy_folder, {}, steps=1)
    taken = trainer.take_checkpoint()
    weights = trainer.take_weights()
    with pytest.raises(RuntimeError, match="still being written"):
        trainer.take_checkpoint()
    with pytest.raises(RuntimeError, match="still being written"):
        trainer.take_weights()
    assert taken.write(tmp_path / "c").is_dir() and weights.publish(tmp_path / "w").version == 1
    assert trainer.take_checkpoint().write(tmp_path / "c").is_dir()


def test_a_write_that_failed_gives_its_memory_back(policy_folder, tmp_path):
    trainer = trainer_of(policy_folder, {}, steps=1)
    (tmp_path / "file").write_text("")
    for take, use in ((trainer.take_checkpoint, "write"), (trainer.take_weights, "publish")):
        with pytest.raises(OSError):
            getattr(take(), use)(tmp_path / "file" / "below")
        getattr(take(), use)(tmp_path / "fine")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"advantage": "gae", "baseline": "none"},
        {"kl_in": "reward", "kl_estimator": "k1"},
        {"objective": "gspo"},
    ],
)
def test_a_batch_made_ahead_trains_the_same_bit_by_bit(policy_folder, fields):
    settings = settings_for(policy_folder, kl_coef=0.1, max_tokens_per_rank=64, **fields)
    plain, ahead = Trainer(settings), RankGroup(settings)
    batches = [make_samples(12, seed=seed) for seed in (1, 2, 3)]
    batches[1][2] = msgspec.structs.replace(batches[1][2], ret=float("nan"))
    prepared = [ahead.prepare(batch) for batch in batches]
    for batch, made in zip(batches, prepared, strict=True):
        a, b = plain.step(batch), ahead.step(made)
        assert a["micro_batches"] > 2
        assert {n: v for n, v in a.items() if not n.endswith("_s")} == {
            n: v for n, v in b.items() if not n.endswith("_s")
        }
    after = weights_of(ahead.trainer)
    assert all(torch.equal(after[name], tensor) for name, tensor in weights_of(plain).items())
