"""Rates are of the time in which the run lived, whatever lies between its lives: for who watches it on its bus, for who
reads its record, and in the report."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import scene
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from core.flow.rates import LEAST_S, Rate, Reading, closed_up, lived_s
from core.record.record import METRICS_EVERY_S, Record
from runners.inspect import events_of
from runners.live import plain_line, quiet_line, render
from runners.live_state import LiveState
from runners.report.data import gather

A_SECOND = 120.0
"""What each of two generators makes, in every life."""
PAUSES = st.sampled_from([0.5, 3.0, 8.0, 20.0, 70.0, 900.0, 86_400.0, -1.0, -3_600.0])
"""Seconds by which the clock is later when the run is taken up again; less than 0: it was set back."""
LIVES = st.lists(st.tuples(st.integers(2, 12), PAUSES), min_size=1, max_size=5)
"""(beats, pause after it) of each."""


def beats(lives: list[tuple[int, float]], beat_s: float) -> Iterator[tuple[float, list[dict]]]:
    """(seconds that this life has lasted, beats of that moment) of a run that was killed after each life. A new process
    counts from 0."""
    at = scene.START
    for life, (count, pause) in enumerate(lives):
        for n in range(count):
            made = n * beat_s * A_SECOND
            yield n * beat_s, [
                {"type": "beat", "actor": f"generator-{i}", "at": at, "pid": 100 * life + i, "host": "h",
                 "gauges": {"tokens_total": made, "verdicts_total": made / 10}}
                for i in range(2)
            ]  # fmt: skip
            at += beat_s
        at += pause - beat_s


@given(LIVES)
@example([(12, 0.5), (4, 0.0)])  # killed and taken up at once
@example([(12, 900.0), (3, 0.0)])
@example([(12, -3_600.0), (12, 0.0)])
def test_the_live_line_tells_what_is_made_while_the_run_lives(lives: list[tuple[int, float]]) -> None:
    state = LiveState()
    for lasted, seen in beats(lives, 2.0):
        for beat in seen:
            state.feed(beat)
        now = seen[0]["at"] + 0.5
        if lasted >= LEAST_S:
            assert state.rates(now) == [
                (pytest.approx(2 * A_SECOND / 10), "kernels/s"),
                (pytest.approx(2 * A_SECOND), "tokens/s"),
            ]
            assert "24.0 kernels/s  240 tokens/s" in plain_line(state, now)
            assert "24.0 kernels/s  240 tokens/s" in quiet_line(state, now)


@settings(max_examples=30, deadline=None)
@given(LIVES)
@example([(12, 900.0), (3, 0.0)])
def test_top_tells_the_same_from_the_record(tmp_path_factory, lives: list[tuple[int, float]]) -> None:
    folder = tmp_path_factory.mktemp("run")
    source, state = events_of(recorded(folder, lives, upto=0)), LiveState()
    for event in source():
        state.feed(event)
    path = folder / "record" / "metrics.jsonl"
    for lasted, seen in beats(lives, METRICS_EVERY_S):
        with path.open("a") as file:
            file.writelines(line(beat) for beat in seen)
        for event in source():
            state.feed(event)
        if lasted >= LEAST_S:
            assert "24.0 kernels/s  240 tokens/s" in picture(state, seen[0]["at"] + 1.0)


@settings(max_examples=30, deadline=None)
@given(LIVES)
@example([(12, 86_400.0), (12, 0.0)])
def test_the_report_leaves_the_time_out_in_which_nothing_ran(tmp_path_factory, lives: list[tuple[int, float]]) -> None:
    folder = recorded(tmp_path_factory.mktemp("run"), lives)
    minutes, rates = gather(folder).throughput["tokens_total"]
    if all(pause >= 0 for _, pause in lives):
        lived_min = sum(count - 1 for count, _ in lives) * METRICS_EVERY_S / 60
        assert all(rate == pytest.approx(2 * A_SECOND, rel=1e-4) for rate in rates)
        assert minutes[-1] - minutes[0] == pytest.approx(lived_min * 59 / 60, abs=2e-3)
    else:  # two hours of one clock stand over each other; what was made is counted all the same
        assert all(rate >= 2 * A_SECOND * 0.999 for rate in rates)


def test_who_has_not_begun_does_not_count() -> None:
    """After a start or a resume evaluators wait for generators, which load their model."""
    rate = Rate()
    for n in range(40):
        rate.see("evaluator-0", max(0, n - 35) * 8.0, float(n), 7.0, "p")
        assert rate.per_s(float(n), 7.0) is None or n > 35
    assert rate.per_s(39.0, 7.0) == pytest.approx(8.0)


def test_nobody_counts_in_a_run_that_is_dead_or_ended() -> None:
    state = LiveState()
    for _, seen in beats([(12, 0.0)], 2.0):
        for beat in seen:
            state.feed(beat)
    assert state.rates(scene.START + 25.0) and not state.rates(scene.START + 60.0)
    assert "rates      –" in picture(state, scene.START + 60.0)
    assert "/s" not in plain_line(state, scene.START + 60.0)


def test_who_stands_still_but_lives_makes_nothing() -> None:
    rate = Rate()
    for n in range(40):
        rate.see("generator-0", min(n, 10) * 100.0, float(n), 7.0)
    assert [rate.per_s(39.0, 7.0), rate.per_s(47.0, 7.0)] == [pytest.approx(100 / 30), None]


def test_one_that_is_restarted_takes_nothing_from_the_other() -> None:
    rate = Rate()
    for n in range(20):
        rate.see("a", 50.0 * n, float(n), 7.0)
        rate.see("b", 50.0 * (n % 10), float(n), 7.0)
    assert rate.per_s(19.0, 7.0) == pytest.approx((19 + 9 + 9) * 50 / 19)


def test_a_reading_soon_after_another_is_no_measure() -> None:
    rate = Rate()
    rate.see("a", 0.0, 0.0, 7.0)
    rate.see("a", 64.0, 0.01, 7.0)
    assert rate.per_s(0.01, 7.0) is None


def test_spans() -> None:
    a = Reading(10.0, 100.0, "p")
    assert a.span_to(Reading(30.0, 104.0, "p"), 7.0) == (100.0, 104.0, 20.0)
    assert a.span_to(Reading(30.0, 104.0, "q"), 7.0) is None
    assert a.span_to(Reading(30.0, 104.0), 7.0) == (100.0, 104.0, 20.0)
    assert [a.span_to(Reading(30.0, at), 7.0) for at in (100.0, 99.0, 107.1)] == [None] * 3
    b = a.span_to(Reading(30.0, 104.0), 7.0)
    assert b.within(101.0, 102.0) == (101.0, 102.0, 5.0) and b.within(90.0, 100.0) is None
    far = (b, b._replace(begin=500.0, end=504.0), b._replace(begin=502.0, end=506.0))
    assert lived_s(far) == 10.0 and lived_s(()) == 0.0
    assert [span.begin for span in closed_up(far)] == [100.0, 104.0, 106.0]


def picture(state: LiveState, now: float) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(render(state, now))
    return console.export_text()


def line(beat: dict) -> str:
    return json.dumps({"at": beat["at"], "actor": beat["actor"], "version": 1, **beat["gauges"]}) + "\n"


def recorded(folder: Path, lives: list[tuple[int, float]], upto: int | None = None) -> Path:
    with Record(folder) as record:
        record.append_facts([scene.Fact(run_id="r", kind="joined", actor="a", at=scene.START)])
    rows = [line(beat) for _, seen in beats(lives, METRICS_EVERY_S) for beat in seen]
    (folder / "record" / "metrics.jsonl").write_text("".join(rows[:upto]))
    return folder
