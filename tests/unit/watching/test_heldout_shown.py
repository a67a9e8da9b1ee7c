"""Held-out evaluations beside training: in the terminal view, on a log's lines, and in the report."""

import io
from pathlib import Path

import msgspec
import pytest
import scene
from rich.console import Console

from bus.messages import Fact
from core.record.record import FACTS, Record
from runners.live import View, render
from runners.live_state import LiveState
from runners.report import build_report
from runners.report.data import gather


def evaluated(version: int, reward: float, missing: int = 0) -> Fact:
    figures = {"reward/mean": reward, "correct/by_turn_1": 0.25, "correct/by_turn_2": 0.5, "episodes/played": 8.0}
    data = {"version": version, "oldest": version, "newest": version + 1, "tasks": 8 - missing, "missing": missing,
            "figures": figures}  # fmt: skip
    return Fact(run_id="demo", kind="evaluated", actor="sampler-0", at=scene.START + version, data=data)


@pytest.mark.parametrize("width", [60, 120])
def test_the_newest_one_is_in_the_picture_beside_the_first(width: int) -> None:
    state = LiveState()
    for message in scene.messages(12):
        state.feed(msgspec.to_builtins(message))
    for fact in (evaluated(5, 0.3), evaluated(10, 0.4), evaluated(10, 0.45)):
        state.feed(msgspec.to_builtins(fact))
    console = Console(width=width, file=io.StringIO(), force_terminal=True, record=True)
    console.print(render(state, scene.START + 60))
    shown = " ".join(console.export_text().replace("│", " ").split())
    assert "version 10 reward 0.450 (version 5: 0.300)" in shown
    assert len(state.heldout) == 2


def test_a_log_gets_one_line() -> None:
    out = io.StringIO()
    view = View(Console(file=out, width=200))
    view.feed(msgspec.to_builtins(evaluated(5, 0.3)), scene.START)
    assert out.getvalue() == "held-out  version 5  reward 0.300  correct by turn 1: 25 %, 2: 50 %\n"


def test_the_report_draws_them_over_versions(tmp_path: Path) -> None:
    folder = scene.write_run(tmp_path, steps=12, held_out_tasks=4)
    before = build_report(folder)
    with Record(folder) as record:
        facts = [evaluated(5, 0.3), evaluated(10, 0.45, missing=2)]
        record.append_facts(facts, last_seq=record.position(FACTS) + 2)
    data = gather(folder)
    assert [(version, figures["heldout/reward/mean"]) for version, figures in data.beside] == [(5, 0.3), (10, 0.45)]
    assert data.ledger.balanced
    page = Path(build_report(folder)).read_text()
    assert "Held-out tasks while training" in page and "2 policy versions; 2 tasks were not answered" in page
    assert before == build_report(folder)
