"""`kernelmill export`: a run's policy comes out as a folder that loads, and nothing else is overwritten for it."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from bus.messages import Step
from core.checkpoints import store
from core.record.record import Record
from tests.unit.runners.typed import ROOT, kernelmill

POLICY = ROOT / "configs/policies/demo"


def export(*words):
    return kernelmill("export", *words)


@pytest.fixture
def run_folder(tmp_path):
    """A run whose checkpoint of step N has every weight of the starting policy plus N, and one not yet verified."""
    folder = tmp_path / "run"
    with Record(folder) as record:
        record.append_steps([Step(run_id="r", kind="incarnation", incarnation=1, step=0, version=0)])
    weights = load_file(POLICY / "model.safetensors")
    for step in (2, 4, 6):
        path = store.write(
            folder / "checkpoints", step, weights=[(name, tensor + step) for name, tensor in weights.items()],
            optimizer=[("w.step", torch.tensor(1.0))], random={"torch": torch.get_rng_state()}, model=str(POLICY),
            dtype="float32", extra=store.Extra(version=step, log_position=7, incarnation=1, consumed=b""),
        )  # fmt: skip
        if step < 6:
            store.commit(path)
    return folder


@pytest.mark.parametrize(("words", "step", "place"), [((), 4, "run/policy"), (("--step", "2", "--out"), 2, "mine")])
def test_the_newest_or_the_named_checkpoint_comes_out(run_folder, words, step, place):
    out = run_folder.parent / place
    words = ["export", str(run_folder), *words, *([str(out)] if words else [])]
    fresh = [sys.executable, "-m", "runners.cli", *words]
    for once in (
        lambda: subprocess.run(fresh, cwd=ROOT, capture_output=True, text=True, timeout=60),
        lambda: kernelmill(*words),  # again: it may replace what it made
    ):
        done = once()
        assert done.returncode == 0 and done.stdout.strip() == str(out), done.stderr
    weights, start = load_file(out / "model.safetensors"), load_file(POLICY / "model.safetensors")
    assert weights.keys() == start.keys()
    assert all(torch.equal(weights[name], tensor + step) for name, tensor in start.items())
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= {path.name for path in out.iterdir()}


def test_a_folder_that_is_no_policy_is_left_alone(run_folder):
    other = run_folder.parent / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years")
    for out in (other, run_folder, run_folder / "checkpoints", ROOT, POLICY, other / "thesis.txt"):
        done = export(run_folder, "--out", out)
        assert done.returncode == 2 and str(out) in done.stderr, done
    assert (other / "thesis.txt").read_text() == "years" and (POLICY / "config.json").exists()


def test_what_is_not_there_is_named(run_folder):
    for words, said in (
        ([run_folder, "--step", "3"], "step-000002, step-000004"),
        ([run_folder, "--step", "0"], "--step 0: checkpoints here: step-000002, step-000004"),
        ([run_folder, "--step", "-1"], "--step -1: checkpoints here: step-000002, step-000004"),
        ([run_folder, "--model", run_folder], "--model"),
        ([run_folder.parent / "nowhere"], "no such run folder"),
    ):
        done = export(*words)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done
    shutil.rmtree(run_folder / "checkpoints")
    assert "has no checkpoint yet" in export(run_folder).stderr


def _flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "weights.safetensors has another sha256": lambda folder: _flip(folder / "weights.safetensors"),
    "weights.safetensors has 1000 bytes": lambda folder: os.truncate(folder / "weights.safetensors", 1000),
    "weights.safetensors is missing": lambda folder: (folder / "weights.safetensors").unlink(),
    "no readable manifest.json": lambda folder: (folder / "manifest.json").write_text("{{{"),
}


@pytest.mark.parametrize("why", DAMAGES)
def test_damaged_weights_are_refused_and_what_else_there_is_is_named(run_folder, why):
    DAMAGES[why](run_folder / "checkpoints/step-000004")
    done = export(run_folder)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done
    assert why in done.stderr and "step-000004" in done.stderr and "--step: 2" in done.stderr
    assert not (run_folder / "policy").exists()
    assert export(run_folder, "--step", "2").returncode == 0
    shutil.rmtree(run_folder / "checkpoints/step-000002")
    assert "no other checkpoint" in export(run_folder).stderr


def test_no_room_is_told_in_one_line_and_nothing_is_left(run_folder):
    standing = run_folder.parent / "standing"
    assert export(run_folder, "--out", standing).returncode == 0
    before = {path: path.read_bytes() for path in standing.iterdir()}
    size = (standing / "model.safetensors").stat().st_size
    for out in (run_folder.parent / "new", standing):
        words = [sys.executable, "-m", "runners.cli", "export", run_folder, "--out", out]
        done = subprocess.run(
            ["bash", "-c", f'ulimit -f {size // 2048}; exec "$@"', "bash", *map(str, words)], cwd=ROOT,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done
        assert f"{out} can't be written" in done.stderr and f"{size / 1e6:.1f} MB to write" in done.stderr
        assert "free there" in done.stderr and "--out" in done.stderr
    assert {path: path.read_bytes() for path in standing.iterdir()} == before
    assert sorted(path.name for path in run_folder.parent.iterdir()) == ["run", "standing"]


def test_a_checkpoint_in_place_of_a_policy_is_told_what_makes_one(run_folder):
    words = ["evaluate", "--config", "configs/demo.toml", "--model", run_folder / "checkpoints" / "step-000004"]
    done = subprocess.run(
        [sys.executable, "-m", "runners.cli", *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and f"kernelmill export {run_folder}" in done.stderr
