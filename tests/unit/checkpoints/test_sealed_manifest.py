"""Any changed byte of a manifest is told as damage, of a checkpoint and of weights; nothing is made of it."""

import msgspec
import pytest
import torch

from core.checkpoints import store
from core.checkpoints.export import export_huggingface
from core.record.record import Record
from core.sealed import Sealed, sealed
from core.weights import filesystem
from runners import cli


def checkpoint(folder, step=1):
    made = store.write(
        folder, step, weights=[("w", torch.ones(2, 3))], optimizer=[("o", torch.zeros(2))],
        random={"cpu": torch.zeros(8, dtype=torch.uint8)}, extra=store.Extra(version=step), model="m", dtype="bfloat16",
    )  # fmt: skip
    return store.commit(made)


def weights(folder):
    filesystem.publish(folder, 1, [("w", torch.ones(2, 3))])
    return filesystem.version_folder(folder, 1)


def without_seal(path):
    known = msgspec.json.decode(path.read_bytes())
    assert known.pop("seal")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(known)))


@pytest.mark.parametrize(
    ("make", "read", "damaged"),
    [
        (checkpoint, store.read_manifest, store.Damaged),
        (checkpoint, store.verify, store.Damaged),
        (weights, filesystem.read_manifest, filesystem.DamagedWeights),
        (weights, filesystem.read, filesystem.DamagedWeights),
    ],
)
@pytest.mark.parametrize("flip", [1, 2, 16, 128])
def test_every_byte_of_a_manifest_is_guarded(tmp_path, make, read, damaged, flip):
    folder = make(tmp_path)
    path = folder / "manifest.json"
    whole = path.read_bytes()
    read(folder)
    for at in range(flip % 3, len(whole), 3 if read in (store.read_manifest, filesystem.read_manifest) else 61):
        changed = bytearray(whole)
        changed[at] ^= flip
        path.write_bytes(changed)
        with pytest.raises(damaged, match=r"manifest\.json") as told:
            read(folder)
        assert "\n" not in str(told.value) and str(folder) in str(told.value)
    path.write_bytes(whole)
    read(folder)


@pytest.mark.parametrize("cut", [0, 1, 40])
@pytest.mark.parametrize(
    ("make", "read", "damaged"),
    [
        (checkpoint, store.read_manifest, store.Damaged),
        (weights, filesystem.read_manifest, filesystem.DamagedWeights),
    ],
)
def test_a_cut_manifest_is_damaged(tmp_path, make, read, damaged, cut):
    path = make(tmp_path) / "manifest.json"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(damaged):
        read(path.parent)


def test_manifests_from_before_there_were_seals_are_taken(tmp_path):
    for folder, read in ((checkpoint(tmp_path / "c"), store.verify), (weights(tmp_path / "w"), filesystem.read)):
        without_seal(folder / "manifest.json")
        read(folder)


def test_a_value_may_hold_what_looks_like_an_open_seal(tmp_path):
    class Note(Sealed, frozen=True, kw_only=True):
        text: str

    from core.sealed import unsealed

    note = Note(text='"seal": "' + "0" * 64 + '"')
    assert unsealed(sealed(note), Note).text == note.text


def test_a_run_does_not_go_on_from_it(tmp_path):
    first, second = checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)
    path = second / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"bfloat16", b"bfloat17"))
    ((step, aside, why),) = store.set_damaged_aside(tmp_path)
    assert (step, aside.name) == (2, "step-000002.damaged") and "manifest.json is damaged" in why
    assert store.latest_committed(tmp_path) == first


@pytest.mark.parametrize("sealed_one", [True, False])
def test_it_is_not_exported(tmp_path, capsys, sealed_one):
    with Record(tmp_path):
        pass
    path = checkpoint(tmp_path / "checkpoints") / "manifest.json"
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    if not sealed_one:
        without_seal(path)
    path.write_bytes(path.read_bytes().replace(b"bfloat16", b"bfloat17"))
    assert cli.main(["export", str(tmp_path), "--model", str(model)]) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and "manifest.json is damaged" in told and not (tmp_path / "policy").exists()
    with pytest.raises(store.Damaged):
        export_huggingface(path.parent, tmp_path / "out", model=model)
    assert not (tmp_path / "out").exists()
