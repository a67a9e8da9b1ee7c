"""A run's config.json that is broken: every command that reads it says so in one line, with what to do."""

import json

import pytest

from bus.messages import Step
from configs.load import load
from core.record.record import Record
from core.run_folder import WHAT_TO_DO
from runners.local import LocalRun
from tests.unit.runners.typed import ROOT, kernelmill

BROKEN = {
    "garbage": b"{{{garbage",
    "empty": b"",
    "cut": b'{"run": {"name": "own"',
    "bytes": b'{"run": "\xff"}',
    "list": b"[1, 2]",
    "sections": b'{"run": 3}',
    "deep": b"[" * 100_000,
}
COMMANDS = {
    "up": lambda folder: ["up", "configs/demo.toml", f"run.folder={folder.parent}", "run.name=own", "bus.port=0"],
    "up its own": lambda folder: ["up", folder / "config.json"],
    "evaluate": lambda folder: ["evaluate", "--config", folder / "config.json"],
    "run": lambda folder: ["run", "sampler", "--config", folder / "config.json"],
    "report": lambda folder: ["report", folder],
    "top": lambda folder: ["top", folder, "--once"],
}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "own"
    with Record(root) as record:
        record.append_steps([Step(run_id="own", kind="incarnation", incarnation=1, step=0, version=0)])
    return root


def told_in_one_line(done, path):
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done
    assert str(path) in done.stderr and len(done.stderr) < 1000


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_file_and_what_to_do(folder, command):
    path = folder / "config.json"
    path.write_bytes(BROKEN["garbage"])
    done = kernelmill(*COMMANDS[command](folder))
    told_in_one_line(done, path)
    assert "not valid JSON" in done.stderr and WHAT_TO_DO in done.stderr
    assert path.read_bytes() == BROKEN["garbage"]


@pytest.mark.parametrize("kind", sorted(set(BROKEN) - {"garbage"}))
@pytest.mark.parametrize("command", ["up", "report"])
def test_however_it_is_broken(folder, command, kind):
    path = folder / "config.json"
    path.write_bytes(BROKEN[kind])
    done = kernelmill(*COMMANDS[command](folder))
    told_in_one_line(done, path)
    assert WHAT_TO_DO in done.stderr


def test_a_value_of_another_kind_is_named(folder):
    path = folder / "config.json"
    config = json.loads(load(ROOT / "configs/demo.toml", ["run.name=own"]).model_dump_json())
    config["run"]["steps"] = "many"
    path.write_text(json.dumps(config))
    done = kernelmill(*COMMANDS["up"](folder))
    told_in_one_line(done, path)
    assert "run.steps" in done.stderr and "many" in done.stderr and WHAT_TO_DO in done.stderr


def test_it_is_written_whole_or_not_at_all(folder, monkeypatch):
    """A supervisor that is killed while it writes, or meets a full disk, leaves the one before."""
    run = LocalRun(load(ROOT / "configs/demo.toml", [f"run.folder={folder.parent}", "run.name=own"]), on_line=print)
    run.prepare()
    before = run.folder.config.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        run.prepare()
    assert run.folder.config.read_bytes() == before
