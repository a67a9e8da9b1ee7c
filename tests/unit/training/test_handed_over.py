"""What the trainer hands over is the version that it published, whatever steps come after."""

import importlib.util

import pytest
import torch

from core.training.trainer import Trainer
from core.weights import filesystem
from core.weights.incoming import receive
from core.weights.outgoing import Outgoing
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for

CPU = torch.device("cpu")
RECIPES = [{"dtype": "float32"}, {"dtype": "bfloat16"}]
if importlib.util.find_spec("peft") is not None:
    RECIPES += [{"dtype": "float32", "lora_rank": 4, "lora_alpha": 8.0}]
each = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: "-".join(map(str, recipe.values())))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def trainer_of(policy_folder, recipe):
    made = Trainer(settings_for(policy_folder, kl_coef=0.0, lr=5e-2, **recipe))
    made.step(make_samples(8))
    return made


@each
def test_tensors_on_a_device_are_those_on_the_cpu(policy_folder, recipe):
    model = trainer_of(policy_folder, recipe).model
    dtype = DTYPES[recipe["dtype"]]
    plain, asked = dict(model.full_tensors(dtype)), dict(model.full_tensors(dtype, device=CPU, own=True))
    assert list(plain) == list(asked)
    for name, tensor in plain.items():
        assert asked[name].dtype == dtype and torch.equal(asked[name], tensor)
    for name, tensor in model.full_tensors(dtype, device="meta"):
        assert tensor.device.type == "meta" and tensor.shape == plain[name].shape


@each
def test_own_tensors_outlive_the_next_step(policy_folder, recipe):
    trainer = trainer_of(policy_folder, recipe)
    own = dict(trainer.model.full_tensors(device=CPU, own=True))
    before = {name: tensor.clone() for name, tensor in own.items()}
    trainer.step(make_samples(8, seed=1))
    after = dict(trainer.model.full_tensors())
    assert all(torch.equal(own[name], tensor) for name, tensor in before.items())
    assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())


@each
def test_engines_and_the_folder_get_the_version_that_was_published(policy_folder, recipe, tmp_path):
    trainer = trainer_of(policy_folder, recipe)
    folder = trainer_of(policy_folder, recipe).publish(tmp_path / "plain")
    trainer.outgoing = Outgoing("nccl", device=CPU, timeout_s=20)
    try:
        manifest = trainer.publish(tmp_path / "copies")
        wanted = dict(trainer.model.full_tensors(DTYPES[recipe["dtype"]], own=True))
        trainer.step(make_samples(8, seed=1))
        got = dict(receive(manifest.source, device=CPU, timeout_s=20).tensors)
    finally:
        trainer.outgoing.close()
    copied = filesystem.read(filesystem.version_folder(tmp_path / "copies", 1))
    assert manifest.fingerprint == folder.fingerprint
    assert wanted.keys() == got.keys() == copied.keys()
    for name, tensor in wanted.items():
        assert torch.equal(got[name], tensor) and torch.equal(copied[name], tensor)
