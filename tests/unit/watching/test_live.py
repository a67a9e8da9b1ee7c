"""The terminal view: what it shows for a run, at two widths, and what it prints where there is no terminal."""

import io

import msgspec
import pytest
import scene
from rich.console import Console

from runners.live import View, duration, number, render, sparkline
from runners.live_state import LiveState


def watched(until_step: int, steps: int = 60) -> tuple[LiveState, float]:
    """The state in the middle of a run, and the time."""
    state, now = LiveState(), scene.START
    state.feed({"type": "run", "name": "demo", "steps": steps, "started_at": scene.START, "max_staleness": 2})
    for message in scene.messages(steps):
        state.feed(msgspec.to_builtins(message))
        if isinstance(message, scene.Step):
            now = message.at
            if message.kind == "step" and message.step == until_step:
                return state, now
    return state, now


def text(state: LiveState, now: float, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, record=True)
    console.print(render(state, now))
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_picture_holds_what_a_person_asks_for(width: int) -> None:
    state, now = watched(20)
    state.feed({"type": "queues", "requests": 3, "evaluations": 12, "episodes": 5})
    state.feed({"type": "actor", "actor": "evaluator-1", "kind": "evaluator", "state": "restarting", "restarts": 2})
    account = {"submitted": 768, "trained": 740, "rejected": {"infra": 12}, "pending": 16}
    state.feed({"type": "ledger", "balanced": True, "episodes": account})
    state.feed({"type": "error", "actor": "evaluator-1", "text": "child killed [bold]\x1b[31m by 9", "at": now})
    shown = text(state, now + 1, width)
    assert all(len(line) <= width for line in shown.splitlines())
    assert "step 20/60" in shown and " left" in shown
    assert f"{state.latest['reward/mean']:.3f}  mean {state.moving_mean('reward/mean'):.3f}" in shown
    assert f"turn 1 {100 * state.latest['correct/by_turn_1']:.0f} %" in shown
    assert "requests 3  evaluations 12  episodes 5" in shown
    assert "kernels/s" in shown and "tokens/s" in shown
    assert "restarting" in shown and "learner-1" in shown
    assert "768 = 740 trained + 12 rejected + 16 pending" in shown
    assert "child killed [bold] [31m by 9" in shown, "markup is shown, control characters are not"
    assert "of at most 2" in shown


def test_before_the_first_step_it_says_so() -> None:
    state = LiveState()
    assert "no step yet" in text(state, 0.0, 80) and "warming up" in text(state, 0.0, 80)
    state.feed({"type": "note", "text": "measuring held-out tasks before training"})
    state.feed({"type": "something new", "field": 1})
    assert "measuring held-out tasks before training" in text(state, 0.0, 80)


def test_an_unbalanced_ledger_and_a_broken_bound_are_shouted() -> None:
    state, now = watched(5)
    state.max_staleness = 0
    state.feed({"type": "ledger", "balanced": False,
                "episodes": {"submitted": 1, "trained": 2, "rejected": {}, "pending": 0}})  # fmt: skip
    console = Console(width=100, file=io.StringIO(), force_terminal=True, record=True, color_system="truecolor")
    console.print(render(state, now))
    styled = console.export_text(styles=True)
    assert "NOT balanced: 1 = 2 trained" in styled
    assert "\x1b[31mmean" in styled


def test_a_rollback_takes_its_steps_back() -> None:
    state, _ = watched(60)
    assert [step for step, _, _ in state.steps] == list(range(1, 61))
    assert state.incarnation == 1 and not state.finished
    state.feed({"type": "step", "kind": "incarnation", "incarnation": 2, "step": 40})
    assert state.done == 40
    state.feed({"type": "step", "kind": "step", "incarnation": 1, "step": 61, "at": 0.0})
    assert state.done == 40, "a zombie's step does not show"
    state.feed({"type": "step", "kind": "finished", "incarnation": 2, "step": 60})
    assert state.finished and state.left_s(0.0) == 0.0


def test_time_left_goes_by_the_steps_made() -> None:
    state = LiveState(steps_total=10)
    for step in range(1, 5):
        state.feed({"type": "step", "kind": "step", "incarnation": 1, "step": step, "at": 100.0 + 8 * step})
    assert state.left_s(132.0) == pytest.approx(48.0)
    assert state.left_s(136.0) == pytest.approx(44.0)


def test_health_goes_by_the_age_of_the_last_beat() -> None:
    state = LiveState()
    state.feed({"type": "actor", "actor": "a", "kind": "learner", "state": "starting"})
    assert state.actors["a"].health(0.0, 7.0) == "starting"
    state.feed({"type": "beat", "actor": "a", "kind": "learner", "at": 10.0, "version": 3, "held": [{}]})
    assert [state.actors["a"].health(now, 7.0) for now in (12.0, 14.0, 18.0)] == ["ok", "late", "silent"]
    state.feed({"type": "actor", "actor": "a", "state": "failed", "restarts": 4})
    assert state.actors["a"].health(12.0, 7.0) == "failed"


def test_who_left_in_order_is_not_called_silent() -> None:
    state = LiveState()
    for name in ("a", "b"):
        state.feed({"type": "beat", "actor": name, "at": 10.0, "version": 3})
    state.feed({"type": "fact", "kind": "left", "actor": "a", "at": 10.5, "data": {"kind": "sampler"}})
    assert [state.actors[name].health(90.0, 7.0) for name in ("a", "b")] == ["left", "silent"]
    state.feed({"type": "fact", "kind": "joined", "actor": "a", "at": 91.0, "data": {"kind": "sampler"}})
    state.feed({"type": "beat", "actor": "a", "at": 92.0, "version": 3})
    assert state.actors["a"].health(93.0, 7.0) == "ok"


def test_who_says_that_it_leaves_is_not_called_silent_either() -> None:
    """A second one of a kind leaves with a beat and no fact: it was never at work."""
    state = LiveState()
    state.feed({"type": "beat", "actor": "a", "at": 10.0, "gauges": {"at_work": 0.0}})
    state.feed({"type": "beat", "actor": "a", "at": 11.0, "gauges": {"at_work": 0.0, "leaving": 1.0}})
    assert state.actors["a"].health(90.0, 7.0) == "left"


def test_a_finished_run_looks_the_same_whenever_it_is_looked_at() -> None:
    state, _ = watched(until_step=-1, steps=20)
    end = state.steps[-1][1]
    state.feed({"type": "step", "kind": "finished", "incarnation": state.incarnation, "step": state.done, "at": end})
    now, later = text(state, end + 60, 80), text(state, end + 7200, 80)
    assert "silent" not in later and "left" in later
    assert now.splitlines()[0] == later.splitlines()[0]


def test_without_a_terminal_each_step_is_a_line() -> None:
    out = io.StringIO()
    with View(Console(file=out, width=80, force_terminal=False)) as view:
        view.feed({"type": "run", "name": "demo", "steps": 8}, 0.0)
        for message in scene.messages(8):
            view.feed(msgspec.to_builtins(message), getattr(message, "at", 0.0))
            view.refresh(0.0)
        view.feed({"type": "note", "text": "measuring held-out tasks"}, 0.0)
        view.feed({"type": "note", "text": "measuring held-out tasks"}, 0.0)
    lines = out.getvalue().splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [int(line.split()[1].split("/")[0]) for line in steps] == [1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8]
    assert "reward " in steps[0] and "correct by turn 1: " in steps[0] and "\x1b" not in out.getvalue()
    assert "the learner goes on from step 1; 3 steps are made again" in lines
    assert any(line.startswith("trouble  sampler-1  learner-1 died") for line in lines)
    assert lines.count("measuring held-out tasks") == 1


def test_a_resumed_run_is_told_from_where_it_goes_on() -> None:
    """What the record says of the time before is known, not told once more, and no measure of how long a step takes."""
    messages = list(scene.messages(8))
    ((taken_up, at),) = [(i, m.at) for i, m in enumerate(messages) if isinstance(m, scene.Step) and m.step == 6]
    out = io.StringIO()
    with View(Console(file=out, width=80, force_terminal=False)) as view:
        view.feed({"type": "run", "name": "demo", "steps": 8, "started_at": at - 0.1}, at)
        for message in messages[:taken_up]:
            view.feed(msgspec.to_builtins(message), at)
        begins = scene.Step(run_id="r", kind="incarnation", incarnation=9, step=5, version=5, at=at)
        view.feed(msgspec.to_builtins(begins), at)
        assert view.state.done == 5 and view.state.left_s(at) is None
        assert out.getvalue().splitlines() == ["the learner goes on from step 5"]


def test_small_words() -> None:
    assert [duration(s) for s in (0.4, 59.4, 310, 7500)] == ["0 s", "59 s", "5 min 10 s", "2 h 05 min"]
    assert [number(v) for v in (0.42, 6.14, 310.2, 3100, 2_400_000)] == ["0.42", "6.1", "310", "3.1k", "2.4M"]
    assert sparkline([0, 1, 2, 7], 10) == "▁▂▃█"
    assert sparkline([5, 5], 10) == "▁▁"
    assert len(sparkline(range(1000), 40)) == 40
