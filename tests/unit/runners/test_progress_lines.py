"""Where no picture is drawn, whoever waits hears now and then where things stand: plain lines, in every command that
may take minutes."""

import asyncio
import io
import json
import os
import time

import pytest
from rich.console import Console

from configs.load import load
from runners import cli, evaluate, local, pulse, supervise
from runners.live import View
from runners.live_state import LiveState
from runners.pulse import Pulse

QUICK_S = 0.05


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(pulse, "EVERY_S", QUICK_S)
    monkeypatch.setattr("runners.live.EVERY_S", QUICK_S)


def plain(text):
    assert text and "\r" not in text and "\x1b" not in text
    return text.splitlines()


def until_said(capfd, what, seconds=20.0):
    """All that was said on stderr up to a line with `what`."""
    said, deadline = "", time.monotonic() + seconds
    while what not in said and time.monotonic() < deadline:
        time.sleep(0.01)
        said += capfd.readouterr().err
    assert what in said, said
    return said


def test_lines_come_rarely_and_not_soon_after_another():
    assert 20 <= pulse.EVERY_S <= 60
    told = []
    with Pulse(lambda: told.append(time.monotonic()) or "on", every_s=0.1) as one:
        for _ in range(30):
            one.said()
            time.sleep(0.01)
        assert told == []
        time.sleep(0.5)
    assert 2 <= len(told) <= 5
    time.sleep(0.2)
    assert len(told) <= 5, "nothing is said of what is over"


def test_a_busy_loop_does_not_keep_it_from_speaking(capfd):
    async def busy():
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            pass

    with Pulse(lambda: "still there", every_s=0.05):
        asyncio.run(busy())
    assert "still there" in plain(capfd.readouterr().err)


class Verdict:
    def __init__(self, correct):
        self.correct = correct


class Turn:
    def __init__(self, correct):
        self.verdict = Verdict(correct)


class Episode:
    def __init__(self, *turns):
        self.turns = [Turn(correct) for correct in turns]


def test_evaluate(capfd, quick, monkeypatch):
    async def measure(config, tasks, *, samples_per_task, progress, **_):
        await asyncio.to_thread(until_said, capfd, "starting the engine and the judge")
        progress.begin()
        for episode in (Episode(False, True), Episode(False)):
            progress.ended(episode)
        said = await asyncio.to_thread(until_said, capfd, "2 of 6 episodes, 1 of them correct")
        assert all(line.startswith("kernelmill evaluate: ") for line in plain(said)) and "left" in said
        return type("HeldOut", (), {"figures": {"reward/mean": 0.5}})

    monkeypatch.setattr(evaluate, "measure", measure)
    assert cli.main(["evaluate", "--config", "configs/demo.toml", "--tasks", "3", "--samples", "2"]) == 0
    assert capfd.readouterr().out == f"{'reward/mean':32} 0.5\n"


def test_audit(capfd, quick, monkeypatch):
    from core.evaluation.audit.auditor import Auditor

    def slow(self, task):
        until_said(capfd, f"0 of 1 tasks, 0 s; {task.task_id} is under way")
        raise KeyboardInterrupt

    monkeypatch.setattr(Auditor, "audit", slow)
    assert cli.main(["audit", "starter", "--limit", "1", "--json"]) == 130
    assert capfd.readouterr().out == ""


def test_sft(capfd, quick, monkeypatch, tmp_path):
    def slow(recipe, report):
        until_said(capfd, "kernelmill sft: 0 s; last: reading the model and making examples")
        report("step 3/9")
        until_said(capfd, "; last: step 3/9")
        return {"parameters": 1, "loss_curve": [[1, 0.5]]}

    monkeypatch.setattr("core.training.sft_policy.make_policy", slow)
    assert cli.main(["sft", "--config", "configs/demo-sft.toml", f"out={tmp_path}/new"]) == 0


def test_export(capfd, quick, monkeypatch, tmp_path):
    def slow(chosen, out, model):
        until_said(capfd, "kernelmill export: step-000004 is checked and written, 0 s")
        return out

    monkeypatch.setattr("core.checkpoints.export.export_huggingface", slow)
    monkeypatch.setattr(
        "core.checkpoints.store.read_manifest", lambda _: type("M", (), {"model": "configs/policies/demo"})
    )
    (tmp_path / "record").mkdir()
    (tmp_path / "checkpoints" / "step-000004").mkdir(parents=True)
    assert cli.main(["export", str(tmp_path)]) == 0
    assert capfd.readouterr().out == f"{tmp_path / 'policy'}\n"


def test_the_demo_hands_on_what_its_evaluation_says(tmp_path, capfd, monkeypatch):
    """Figures come by a file, so its stdout is nobody's; its stderr is the demo's own."""
    from core.episodes.heldout_figures import HeldOut
    from core.record.heldout import save
    from core.run_folder import RunFolder
    from runners import demo

    program = tmp_path / "evaluation"
    program.write_text("#!/bin/sh\necho figures\necho 'kernelmill evaluate: 3 of 9 episodes' >&2\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    save(HeldOut.of([], version=0, step=0, seed=0, sources={}), tmp_path / "out")
    demo._evaluate(RunFolder(tmp_path), "model", tmp_path / "out")
    out, err = capfd.readouterr()
    assert "figures" not in out and err == "kernelmill evaluate: 3 of 9 episodes\n"


def view(out):
    made = View(Console(file=out, width=200), LiveState())
    made.feed({"type": "run", "name": "own", "steps": 24, "started_at": 1000.0, "dead_after_s": 7.0}, 1000.0)
    return made


def test_a_run_without_a_terminal():
    out = io.StringIO()
    one = view(out)
    for second in range(100):
        one.refresh(1000.0 + second)
    assert plain(out.getvalue()) == ["step 0/24, first one under way"] * 3
    one.feed({"type": "queues", "requests": 2, "evaluations": 5}, 1100.0)
    beat = {"type": "beat", "actor": "generator-0", "gauges": {"tokens_total": 100.0}}
    one.feed({**beat, "at": 1100.0}, 1100.0)
    one.feed({**beat, "at": 1104.0, "gauges": {"tokens_total": 900.0}}, 1104.0)
    one.feed({"type": "actor", "actor": "learner-0", "state": "restarting", "restarts": 1}, 1105.0)
    one.feed({"type": "error", "actor": "learner-0", "text": "died", "at": 1105.0}, 1105.0)
    before = len(out.getvalue())
    one.refresh(1120.0)
    assert len(out.getvalue()) == before, "something was said a moment ago"
    one.feed({**beat, "at": 1128.0, "gauges": {"tokens_total": 4900.0}}, 1128.0)
    one.feed({**beat, "at": 1133.0, "gauges": {"tokens_total": 5900.0}}, 1133.0)
    one.refresh(1135.5)
    (line,) = plain(out.getvalue()[before:])
    for part in ("waiting: requests 2, evaluations 5", "  200 tokens/s", "not at work: learner-0"):
        assert part in line
    one.feed({"type": "note", "text": "stopping, Ctrl-C again ends it at once"}, 1140.0)
    before = len(out.getvalue())
    one.refresh(1171.0)
    assert plain(out.getvalue()[before:]) == ["still stopping, Ctrl-C again ends it at once"]


def test_a_terminal_has_its_picture_and_no_such_lines():
    out = io.StringIO()
    one = View(Console(file=out, width=200, force_terminal=True), LiveState())
    with one:
        one.refresh(1000.0)
        one.refresh(1100.0)
    assert "under way" not in out.getvalue()


def test_up_goes_on_telling_while_it_stops(tmp_path, monkeypatch, capsys, quick):
    class Slow(local.LocalRun):
        def _actors(self):
            return []

        async def wait(self):
            os.kill(os.getpid(), 2)
            await asyncio.sleep(60)

        async def stop(self):
            await asyncio.sleep(1.0)
            await super().stop()

    monkeypatch.setattr(supervise, "LocalRun", Slow)
    config = load("configs/demo.toml", ["run.name=own", f"run.folder={tmp_path}", "bus.port=0"])
    assert asyncio.run(asyncio.wait_for(supervise.supervise(config, ""), 60)) == 130
    said = plain(capsys.readouterr().out)
    assert any(line.startswith("still stopping, Ctrl-C again ends it at once") for line in said), said
    assert json.loads((tmp_path / "own" / "config.json").read_text())
