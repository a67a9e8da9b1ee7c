"""The slowest stage: in the terminal view, on a log's lines, in `tail`, and in the report."""

import io

import msgspec
import scene
from rich.console import Console

from bus.messages import Step
from core.flow.stages import LIMITS
from runners.inspect import line_of
from runners.live import plain_line, render
from runners.live_state import LiveState
from runners.report.page import page
from runners.report.stages import limits

BUSY = {"stage/generation_busy": 0.4, "stage/judging_busy": 0.97, "stage/training_busy": 0.2,
        "stage/publication_busy": 0.0, "stage/limit": float(LIMITS.index("judging"))}  # fmt: skip


def shown(state: LiveState) -> str:
    console = Console(width=120, file=io.StringIO(), force_terminal=True, record=True)
    console.print(render(state, scene.START + 60))
    return console.export_text()


def test_a_step_that_knows_it_names_it_everywhere():
    state = LiveState()
    for message in scene.messages(8):
        state.feed(msgspec.to_builtins(message))
    assert "limit" not in shown(state) + plain_line(state, scene.START), "records of older runs know none"
    step = Step(run_id="demo", kind="step", incarnation=1, step=9, version=9, at=scene.START + 50, metrics=BUSY)
    state.feed(msgspec.to_builtins(step))
    text = " ".join(shown(state).replace("│", " ").split())
    assert "judging, 97 % busy (generation 40 %" in text
    assert "limit judging" in plain_line(state, scene.START + 50)
    assert line_of(msgspec.to_builtins(step)).endswith("limit judging")


def test_the_report_draws_how_busy_they_were(tmp_path):
    from runners.report.data import gather

    data = gather(scene.write_run(tmp_path, steps=8, held_out_tasks=2))
    assert "How busy the stages are" not in page(data)
    for figures in data.figures[1:]:
        figures.update(BUSY)
    data.figures[-1]["stage/limit"] = float(LIMITS.index("staleness"))
    text = page(data)
    assert "How busy the stages are" in text and "limits: judging in 6 steps, staleness in 1 step" in text


def test_steps_without_a_limit_are_told_too():
    assert limits([None, None]) == "too short to tell a limit"
    assert limits([None, 0.0, 2.0, 2.0, 99.0]) == "limits: judging in 2 steps, balanced in 1 step"
