"""How a run stands is what is true now, for everyone who tells it: a run that finished before its `run.steps` were
raised has not, and who was stopped or killed does not run."""

import argparse
import io
import json
import threading
from pathlib import Path

import pytest
import scene
from rich.console import Console

from configs.load import load
from core.record import reading
from core.record.record import Record
from core.run_folder import RunFolder
from runners import inspect, ledger
from runners.live import render
from runners.live_state import LiveState
from runners.report import build_report
from runners.up import finished_at

STEPS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that finished."""
    return scene.write_run(tmp_path / "demo", steps=STEPS, held_out_tasks=0)


def wants(folder: Path, steps: int) -> None:
    path = RunFolder(folder).config
    config = json.loads(path.read_text())
    config["run"]["steps"] = steps
    path.write_text(json.dumps(config))


def call(module, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    module.add_parser(parser.add_subparsers())
    args = parser.parse_args(argv)
    return args.run(args)


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What each command says of it."""
    assert call(ledger, "ledger", str(folder)) == 0
    said = {"ledger": capsys.readouterr().out}
    assert call(inspect, "top", str(folder), "--once") == 0
    said["top"] = capsys.readouterr().out
    said["report"] = build_report(folder).read_text()
    return said


WANTED = [(STEPS, "finished"), (STEPS - 1, "finished"), (STEPS + 8, f"stopped at step {STEPS} of {STEPS + 8}")]


@pytest.mark.parametrize(("steps", "stands"), WANTED)
def test_it_has_finished_only_with_as_many_steps_as_it_wants(folder, capsys, steps, stands):
    wants(folder, steps)
    said = told(folder, capsys)
    assert f" taken back by rollbacks, {stands}\n" in said["ledger"]
    assert f" · {stands}" in said["report"]
    assert f" · {stands.split()[0]}" in said["top"].splitlines()[0]
    assert all(("finished" in words) == (stands == "finished") for words in (said["ledger"], said["top"]))
    assert reading.ledger(folder).as_dict()["finished"] == (stands == "finished")
    assert (finished_at(RunFolder(folder), steps) is not None) == (stands == "finished")


def test_one_that_is_being_recorded_runs(folder, capsys):
    wants(folder, STEPS + 8)
    with Record(folder):
        said = told(folder, capsys)
    assert f"running, at step {STEPS} of {STEPS + 8}" in said["ledger"]
    assert f"running, at step {STEPS} of {STEPS + 8}" in said["report"]
    assert "stopped" not in said["top"]


def test_without_a_config_the_chain_has_the_word(folder, capsys):
    RunFolder(folder).config.unlink()
    said = told(folder, capsys)
    assert "finished" in said["ledger"] and "finished" in said["report"] and "finished" in said["top"]
    RunFolder(folder).config.write_text("{")
    assert reading.ledger(folder).finished


def test_a_stopped_run_looks_the_same_whenever_it_is_looked_at(folder):
    wants(folder, STEPS + 8)
    state = LiveState()
    for event in inspect.events_of(folder)():
        state.feed(event)
    state.feed(inspect.written_event(folder))
    assert state.stopped and state.left_s(state.last_at) is None
    soon, later = (head(state, state.last_at + s) for s in (1.0, 86_400.0))
    assert soon == later and "stopped" in soon
    state.feed({"type": "written", "now": True})
    assert not state.stopped


def head(state: LiveState, now: float) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(state, now))
    shown = console.export_text()
    assert "silent" not in shown or not state.stopped
    return shown.splitlines()[0]


def test_up_does_not_call_it_finished_before_its_learner_begins():
    state = LiveState()
    state.feed({"type": "run", "name": "demo", "steps": STEPS + 8})
    for message in scene.messages(STEPS):
        if isinstance(message, scene.Step):
            state.feed(scene.msgspec.to_builtins(message))
    assert state.done == STEPS and not state.finished


def test_tail_goes_on_and_says_what_it_waits_for(folder, capsys, monkeypatch):
    wants(folder, STEPS + 1)
    waits = threading.Event()

    def goes_on(_):
        waits.set()
        with Record(folder) as record:
            for kind, step in (("incarnation", STEPS), ("finished", STEPS + 1)):
                row = scene.Step(run_id="r", kind=kind, incarnation=9, step=step, version=step, at=scene.START + 1e4)
                record.append_steps([row])

    monkeypatch.setattr(inspect.time, "sleep", goes_on)
    assert call(inspect, "tail", str(folder)) == 0 and waits.is_set()
    shown = capsys.readouterr()
    assert f"stopped at step {STEPS} of {STEPS + 1}; waiting until it goes on" in shown.err
    assert shown.out.splitlines()[-1].endswith(f"finished at step {STEPS + 1}")


def test_a_run_s_own_config_names_its_steps(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config.write_text(load("configs/demo.toml", ["run.steps=7"]).model_dump_json())
    assert reading.steps_wanted(tmp_path) == 7
    assert reading.steps_wanted(tmp_path / "nowhere") == 0
