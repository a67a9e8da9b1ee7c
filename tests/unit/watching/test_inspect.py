"""`kernelmill tail` and `top`: a run read from its folder, while it grows."""

import json
import re
from pathlib import Path

import pytest
import scene

from bus import facts
from configs.schema import RunConfig
from core.record.record import METRICS_EVERY_S, Record
from runners import inspect
from runners.inspect import Follower, error_of, events_of, line_of
from runners.live_state import ActorState, LiveState
from runners.usage import Parser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scene.write_run(tmp_path_factory.mktemp("runs") / "demo", steps=8, held_out_tasks=2)


def call(*argv: str) -> int:
    parser = Parser(prog="kernelmill")
    inspect.add_parser(parser.add_subparsers())
    args = parser.parse_args(argv)
    return args.run(args)


def test_tail_tells_the_run_in_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tail", str(folder), "-n", "500") == 0, "it ends with the run"
    lines = capsys.readouterr().out.splitlines()
    assert sum("  admitted  group_id=" in line for line in lines) == 33
    assert any("took over as incarnation 1 after step 1" in line for line in lines)
    assert "finished at step 8" in lines[-1]
    assert re.search(r"rejected 1 group of [\d,]*00 tokens after step 8: poison", lines[-2])
    steps = [line for line in lines if "  step " in line]
    assert len(steps) == 11 and "reward 0." in steps[0] and " trained, " in steps[0]


def test_tail_picks_kinds_and_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tail", str(folder), "--kind", "died", "--no-follow") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "sampler-1" in line and "died  kind=learner actor=learner-1 handed_on=0" in line
    assert call("tail", str(folder), "-n", "0", "--no-follow") == 0
    assert capsys.readouterr().out == ""
    assert call("tail", str(folder / "nowhere")) == 2
    assert "kernelmill tail: " in capsys.readouterr().err


def test_tail_knows_its_kinds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("step", *facts.ALL):
        assert call("tail", str(folder), "--kind", kind, "--no-follow") == 0
    with pytest.raises(SystemExit, match="2"):
        call("tail", str(folder), "--kind", "admited", "--no-follow")
    assert "did you mean admitted?" in capsys.readouterr().err


def test_a_hostile_fact_stays_on_its_line() -> None:
    row = {"kind": "refused", "actor": "x", "at": 1.0, "data": {"reason": "\x1b[2J\n" + "y" * 200}}
    line = line_of(row)
    assert "\x1b" not in line and "\n" not in line and len(line) < 120


def test_a_follower_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    follower = Follower(path)
    assert list(follower.new()) == []
    path.write_bytes(b'{"a": 1}\nnot json\n{"a": 2')
    assert list(follower.new()) == [{"a": 1}]
    path.write_bytes(path.read_bytes() + b"}\n")
    assert list(follower.new()) == [{"a": 2}]
    assert list(follower.new()) == []


def test_top_shows_the_folder_as_it_grows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "logs").mkdir()
    log = folder / "logs" / "evaluator-1.jsonl"
    log.write_text(
        json.dumps({"event": "judging failed", "level": "error", "timestamp": "2025-06-15T15:07:00Z"}) + "\n"
    )
    state, source = LiveState(), events_of(folder)
    for event in source():
        state.feed(event)
    assert (state.name, state.steps_total, state.done, state.finished) == ("demo", 8, 8, True)
    assert state.max_staleness == 2 and state.actors["generator-1"].gauges["running"] == 12.0
    assert any(text == "judging failed" for _, _, text in state.errors)
    assert list(source()) == []
    with Record(folder) as record:
        record.append_facts([scene.Fact(run_id="demo", kind="stalled", actor="learner-1", at=9e9, data={"text": "hm"})])
    assert [event["kind"] for event in source()] == ["stalled"]
    assert call("top", str(folder), "--once") == 0
    shown = capsys.readouterr().out
    assert "step 8/8" in shown and "trained +" in shown and "judging failed" in shown


def test_a_healthy_actor_is_never_late_for_the_records_rhythm(folder: Path) -> None:
    """A beat may be as old as the last row of gauges, and that was as old as a beat when it was written."""
    bus = RunConfig.model_validate({"model": {"path": "m"}}).bus
    (folder / "config.json").write_text(json.dumps({"bus": bus.model_dump()}))
    state, source = LiveState(), events_of(folder)
    for event in source():
        state.feed(event)
    beat = ActorState(state="running", beat_at=0.0)
    assert beat.health(METRICS_EVERY_S + bus.beat_s, state.dead_after_s) == "ok"
    assert beat.health(bus.dead_after_s + 2.1 * METRICS_EVERY_S, state.dead_after_s) == "silent"


def test_errors_in_logs() -> None:
    entry = {"level": "error", "event": "crashed", "exception": "Traceback …\nValueError: no", "at": 5}
    assert error_of(entry, "learner-1") == {
        "type": "error",
        "actor": "learner-1",
        "text": "crashed: ValueError: no",
        "at": 5.0,
    }
    assert error_of({"level": "warning", "event": "x"}, "a") is None
    assert error_of({"level": "critical", "event": "x", "timestamp": "yesterday"}, "a") == {
        "type": "error",
        "actor": "a",
        "text": "x",
        "at": 0.0,
    }
