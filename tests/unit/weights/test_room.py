"""A disk that has no room: one line, and what stands there stays as it was. RLIMIT_FSIZE stands for the full disk."""

import errno
import resource

import pytest
import torch

from core.checkpoints import store
from core.training.sft_policy import _write
from core.weights import filesystem
from core.weights.room import NoRoom, making
from runners.cli import is_users_fault

MANY = [("a", torch.ones(1000)), ("b", torch.ones(1_000_000)), ("c", torch.ones(2_000_000))]
FEW = [("a", torch.ones(1000))]


@pytest.fixture
def no_room():
    """No file of this process may grow beyond 100 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def checkpoint(folder, weights, optimizer):
    return store.write(
        folder, 1, weights=iter(weights), optimizer=iter(optimizer), random={}, extra=store.Extra(version=1), model="m",
        dtype="float32",
    )  # fmt: skip


WRITERS = {
    "weights of a checkpoint": lambda folder: checkpoint(folder, MANY[:2], MANY[2:]),
    "optimizer of a checkpoint": lambda folder: checkpoint(folder, FEW, MANY[1:]),
    "policy": lambda folder: filesystem.publish(folder, 1, iter(MANY)),
}


@pytest.mark.parametrize("what", WRITERS)
def test_it_is_told_and_nothing_is_left(tmp_path, no_room, what):
    with pytest.raises(NoRoom) as caught:
        WRITERS[what](tmp_path / "there")
    said = str(caught.value)
    assert is_users_fault(caught.value) and "\n" not in said
    assert str(tmp_path / "there") in said and "12.0 MB to write" in said and "B free there" in said
    assert list((tmp_path / "there").iterdir()) == []


def test_what_stood_there_stays(tmp_path, no_room):
    standing = checkpoint(tmp_path, FEW, [])
    filesystem.publish(tmp_path, 1, FEW)
    for what in WRITERS.values():
        with pytest.raises(NoRoom):
            what(tmp_path)
    store.verify(standing)
    assert filesystem.read(filesystem.version_folder(tmp_path, 1))["a"].sum() == 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001.written", "v000001"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_whoever_meets_it(tmp_path, number):
    """A file of Python's own, or the last flush, which a file system in a network refuses."""
    said = r"there can't be written: .*0\.0 MB to write, .* free there; hint; nothing"
    with pytest.raises(NoRoom, match=said), making(tmp_path / "there", hint="hint") as made:
        (made.aside / "half").write_text("half")
        raise OSError(number, "no")
    assert list(tmp_path.iterdir()) == []


def test_anything_else_is_raised_as_it_is(tmp_path):
    for error in (OSError(errno.EIO, "no"), ValueError("os error 28"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, making(tmp_path / "there", hint="") as made:
            (made.aside / "half").write_text("half")
            raise error
        assert caught.value is error and list(tmp_path.iterdir()) == []


def test_a_supervised_policy_as_well(tmp_path, no_room):
    from types import SimpleNamespace

    from transformers import Qwen3Config

    from core.training.model import build_lm

    config = Qwen3Config(
        vocab_size=4096, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    recipe = SimpleNamespace(out=str(tmp_path / "policy"))
    with pytest.raises(NoRoom, match=r"policy can't be written: .* 0\.3 MB to write"):
        _write(recipe, build_lm(config, seed=1), None, {})
    assert list(tmp_path.iterdir()) == []
