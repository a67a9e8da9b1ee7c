"""The report: its figures against the record, its safety against what kernels say, and its drawing."""

import argparse
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import scene
from hypothesis import given
from hypothesis import strategies as st

from core.record import heldout, reading
from core.record.record import FILES, STEPS, Record
from runners import report
from runners.report import build_report
from runners.report.code import code_block
from runners.report.data import first_and_last, gather, moving_mean
from runners.report.svg import Series, figure, label, line_chart, ticks

VOID = {"meta", "br", "line", "circle", "polyline", "img", "link", "input"}


class Page(HTMLParser):
    """Collects what a browser would act on, and checks that elements close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scene.write_run(tmp_path_factory.mktemp("runs") / "demo", steps=20)


def test_the_page_is_whole_and_says_what_the_record_says(folder: Path) -> None:
    path = build_report(folder)
    text = path.read_text()
    page = Page(text)
    assert path == folder / "report.html" and page.open == []
    told = " ".join(" ".join(page.text).split())
    before, after = heldout.load(folder / heldout.BEFORE), heldout.load(folder / heldout.AFTER)
    assert before is not None and after is not None
    for name in ("correct/by_turn_1", "repair/turn_2"):
        assert f"{100 * before.figures[name]:.0f} → {100 * after.figures[name]:.0f} %" in told
        assert f"{100 * (after.figures[name] - before.figures[name]):+.1f} pts" in told
    account = reading.ledger(folder).episodes
    assert f"episodes {account.submitted} {account.trained} {account.rejected_total} ({account.reasons()})" in told
    assert f"of {account.rejected_tokens['poison']:,} tokens" in account.reasons()
    rewards = [row.metrics["reward/mean"] for row in gather_steps(folder)]
    assert f"{sum(rewards[:3]) / 3:.2f} → {sum(rewards[-3:]) / 3:.2f}" in told
    assert "balanced" in told and "20 steps" in told and "restarted from step 7; 3 steps made again" in told
    assert text.count('<svg class="chart"') == 10 + 3, "three of the learner's own figures are in the scene"
    assert "step 3: the weights did not move" in told
    assert f"step 1&#10;step: {figure(rewards[0])}" in text, "tooltips name their values"


def gather_steps(folder: Path) -> list[reading.StepRow]:
    """The last record of every step number: those that a rollback voided were made again later."""
    steps = list({row.step: row for row in reading.steps(folder) if row.kind == "step"}.values())
    assert reading.surviving_steps(reading.steps(folder)) == steps
    return steps


def test_stage_times_are_those_that_training_waited_for(folder: Path, tmp_path: Path) -> None:
    shown = (folder / "report.html").read_text() if build_report(folder) else ""
    for part in ("learner", "waiting for episodes", "preparing", "publishing", "checkpoint", "generation", "judging"):
        assert f">{part}<" in shown
    old = scene.write_run(tmp_path / "old", steps=5)
    steps = old / "record" / FILES[STEPS]
    steps.write_text(re.sub(r'"time/(prepare|publish|checkpoint)_exposed_s":[^,}]+,?', "", steps.read_text()))
    build_report(old)
    page = (old / "report.html").read_text()
    assert ">waiting for episodes<" in page and ">publishing<" not in page


def test_nothing_in_it_can_act_or_call_out(folder: Path) -> None:
    text = build_report(folder).read_text()
    page = Page(text)
    assert page.tags.isdisjoint({"script", "img", "iframe", "link", "object", "embed", "base", "form", "a"})
    assert not [name for name in page.attributes if name.startswith("on")]
    assert page.addresses == []
    assert "url(" not in text and "@import" not in text
    assert re.findall(r"https?://", text) == []


def test_what_kernels_say_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    run = scene.write_run(tmp_path / "demo", steps=2, held_out_tasks=4)
    for name in (heldout.BEFORE, heldout.AFTER):
        made = json.loads((run / name).read_text())
        made["sources"] = {f"t{scene.HOSTILE}": scene.HOSTILE}
        right = name == heldout.AFTER
        turn = made["episodes"][0]["turns"][0]
        turn["candidate"] = f"x = '{scene.HOSTILE}' \u202e # {scene.HOSTILE}"
        turn["verdict"] |= {"feedback": scene.HOSTILE, "category": scene.HOSTILE, "kind": "pass" if right else "fail"}
        turn["score"] = 1.0 if right else 0.0
        made["episodes"] = [{"task_id": f"t{scene.HOSTILE}", "turns": [turn]}]
        (run / name).write_text(json.dumps(made))
    (run / "config.json").write_text(
        json.dumps({"run": {"name": scene.HOSTILE}, scene.HOSTILE: {scene.HOSTILE: scene.HOSTILE}})
    )
    text = build_report(run).read_text()
    page = Page(text)
    assert page.open == [] and page.tags.isdisjoint({"script", "img"})
    assert "".join(page.text).count("document.title='owned'") >= 6
    assert "\u202e" not in text


def test_credentials_of_the_config_stay_out(folder: Path) -> None:
    config = {"bus": {"url": "nats://user:pass@broker:4222", "token": "s3cret"}, "rollout": {"max_new_tokens": 512}}
    (folder / "config.json").write_text(json.dumps(config))
    told = " ".join(Page(build_report(folder).read_text()).text)
    assert "s3cret" not in told and "user:pass" not in told
    assert "nats://(hidden)@broker:4222" in told and "512" in told


def test_figures_come_from_the_archive_where_the_learner_left_them_out(tmp_path: Path) -> None:
    run = scene.write_run(tmp_path / "demo", steps=8, held_out_tasks=0)
    told = {row.step: row.metrics for row in gather_steps(run)}
    path = run / "record" / FILES[STEPS]
    bare = [json.loads(line) | {"metrics": {}} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in bare))
    data = gather(run)
    assert data.steps == list(range(1, 9))
    for step, figures in zip(data.steps, data.figures, strict=True):
        assert {name: told[step][name] for name in figures} == pytest.approx(figures)
        assert {"reward/mean", "staleness/max", "correct/by_turn_1"} <= figures.keys()


def test_without_held_out_files_the_archive_gives_the_kernels(tmp_path: Path) -> None:
    run = scene.write_run(tmp_path / "demo", steps=10)
    (run / heldout.BEFORE).unlink()
    (run / heldout.AFTER).unlink()
    data = gather(run)
    assert data.pairs and all(pair.gain > 0 for pair in data.pairs)
    assert [pair.gain for pair in data.pairs] == sorted((pair.gain for pair in data.pairs), reverse=True)
    told = " ".join(Page(build_report(run).read_text()).text)
    assert "No held-out evaluation was made" in told and "triton.jit" in told.replace(" ", "")


def test_the_time_in_which_a_run_was_stopped_is_no_time_of_its(tmp_path: Path) -> None:
    def beats(first: float, last: float) -> list[dict[str, object]]:
        return [{"at": first + 5.0 * n, "actor": "learner-1"} for n in range(int((last - first) / 5) + 1)]

    joined = scene.Fact(run_id="r", kind="joined", actor="learner-1", at=1000.0)
    with Record(tmp_path / "r") as record:
        record.append_facts([joined, scene.Fact(run_id="r", kind="left", actor="learner-1", at=8260.0)])
        record.append_metrics([*beats(1000.0, 1090.0), *beats(8200.0, 8260.0)])
    data = gather(tmp_path / "r")
    assert data.paused_s == 8200.0 - 1090.0
    told = " ".join(Page(build_report(tmp_path / "r").read_text()).text)
    assert "2 min 30 s, stopped for 1 h 58 min between" in told
    with Record(tmp_path / "bare") as record:  # without gauges nobody knows
        record.append_facts([joined, scene.Fact(run_id="r", kind="left", actor="learner-1", at=8260.0)])
    assert gather(tmp_path / "bare").paused_s == 0.0


def test_a_run_that_made_no_step_has_a_report_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Record(tmp_path / "demo") as record:
        record.append_facts([scene.Fact(run_id="r", kind="joined", actor="learner-1", at=5.0)])
    parser = argparse.ArgumentParser()
    report.add_parser(parser.add_subparsers())
    args = parser.parse_args(["report", str(tmp_path / "demo")])
    assert args.run(args) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "demo" / "report.html")
    assert "No step was recorded" in (tmp_path / "demo" / "report.html").read_text()
    args = parser.parse_args(["report", str(tmp_path)])
    assert args.run(args) == 2
    assert "holds no record/ of a run; runs in it: demo" in capsys.readouterr().err


@given(st.floats(-1e6, 1e6), st.just(0.0) | st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_cover_the_range_evenly(low: float, span: float, about: int) -> None:
    marks = ticks(low, low + span, about)
    gaps = [b - a for a, b in pairwise(marks)]
    assert 2 <= len(marks) <= about + 3
    assert marks[0] <= low + 1e-6 * gaps[0] and marks[-1] >= low + span - 1e-6 * gaps[0]
    assert all(gap == pytest.approx(gaps[0]) for gap in gaps)
    assert len({label(mark, marks, False) for mark in marks}) == len(marks) or max(map(abs, marks)) >= 10_000


def test_ticks_of_small_values_are_readable() -> None:
    assert [label(mark, ticks(0, 1e-6, 2), False) for mark in ticks(0, 1e-6, 2)] == ["0", "5e-07", "1e-06"]
    assert [label(mark, ticks(0, 3e4, 3), False) for mark in ticks(0, 3e4, 3)] == ["0", "10k", "20k", "30k"]


def test_a_chart_breaks_its_line_at_gaps_and_thins_what_is_long() -> None:
    drawn = line_chart([Series("a", [1, 2, 3, 4, 5], [1.0, 2.0, None, 3.0, 4.0])], title="t")
    assert drawn.count("<polyline") == 2
    alone = line_chart([Series("a", [1, 2, 3], [None, 2.0, None])], title="t")
    assert alone.count("<circle") == 1 and "<polyline" not in alone
    long = line_chart([Series("a", range(10_000), [float(n) for n in range(10_000)])], title="t")
    assert long.count("<rect") == 240
    assert line_chart([Series("a", [1.0], [None])], title="R<eward") == (
        '<p class="absent">R&lt;eward: nothing was recorded.</p>'
    )


def test_the_chart_puts_values_where_they_belong() -> None:
    drawn = line_chart([Series("a", [0, 10], [0.0, 1.0])], title="t", percent=True)
    (points,) = re.findall(r'points="([^"]+)"', drawn)
    assert points == "52.0,194.0 468.0,10.0"
    assert ">100 %</text>" in drawn and ">0 %</text>" in drawn
    assert "<title>step 10&#10;a: 100.0 %</title>" in drawn


def test_long_kernels_are_cut_and_controls_are_marked() -> None:
    shown = code_block("x = 1\x1b[31m\n" + "y" * 30_000)
    assert "more characters" in shown and len(shown) < 25_000
    assert "\x1b" not in shown and "\N{REPLACEMENT CHARACTER}" in shown


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_no_step_is_both_among_the_first_and_the_last(values: list[float]) -> None:
    first, last, n = first_and_last(values)
    assert 1 <= n <= 3 and 2 * n <= len(values)
    assert first == pytest.approx(sum(values[:n]) / n) and last == pytest.approx(sum(values[len(values) - n :]) / n)


def test_moving_mean_passes_over_gaps() -> None:
    assert moving_mean([1.0, None, 3.0, 5.0], 2) == [1.0, 1.0, 3.0, 4.0]
    assert moving_mean([None, 2.0], 3) == [None, 2.0]


def test_the_struct_of_the_scene_is_the_bus_own() -> None:
    """The scene speaks the real message types, so a change of theirs breaks these tests."""
    kinds = {type(message).__module__ for message in scene.messages(2)}
    assert kinds == {"bus.messages"}
    assert all(msgspec.to_builtins(message)["type"] for message in scene.messages(2))
