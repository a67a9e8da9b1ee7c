"""A measurement that tells more of the moment than of the candidate is made again; which counts is not a matter of what
it says of the speed. Children and clock are those of test_gpu_clock.py."""

import pytest
from test_gpu_clock import PROTOCOL, measure, world  # noqa: F401 - fixtures

from core.evaluation.findings import Finding
from core.evaluation.gpu import again, timing


@pytest.fixture
def clear(measure, world):  # noqa: F811
    """`until_clear` over real measurements; `seen` are its attempts: made again, kept apart, result."""
    seen: list[tuple[bool, bool, timing.Measured | Finding]] = []

    def run(baseline_ms=2.0, candidate_ms=1.0, apart=lambda: None, after=lambda: None, lease_s=0.0, **candidate):
        def once(more, alone):
            world.now_s += lease_s  # others measure
            if alone:
                apart()
            began = world.now_s
            one, result = measure(baseline_ms, candidate_ms, PROTOCOL, **candidate)
            seen.append((more, alone, result))
            after()
            return result, one.blocks, world.now_s - began

        return again.until_clear(once, "t")

    return run, seen


def _slow_blocks(world):  # noqa: F811
    """Every other block takes half as long again, with nothing else to see."""
    world.disturbed = lambda block: 1.0 if block % 2 else 1.5


def _no_slow_blocks(world):  # noqa: F811
    world.disturbed = lambda block: 1.0


def test_what_is_clear_is_measured_once(clear):
    run, seen = clear
    found = run()
    assert found.clear and [attempt[:2] for attempt in seen] == [(False, False)]


@pytest.mark.parametrize("lease_s", [0.0, 10.0])
def test_a_moment_that_nobody_saw_does_not_count(clear, world, caplog, lease_s):  # noqa: F811
    """However long others measure before."""
    run, seen = clear
    _slow_blocks(world)
    found = run(after=lambda: _no_slow_blocks(world), lease_s=lease_s)
    assert not seen[0][2].clear and seen[0][2].width > timing.WIDE
    assert found.clear and found.runtime_ms == pytest.approx(1.0, rel=0.01)
    assert [attempt[:2] for attempt in seen] == [(False, False), (True, False)]
    assert "measured again, interval" in caplog.text and "candidate 1" in caplog.text and "eager 2" in caplog.text


def test_the_last_measurement_has_no_first_calls_beside_it(clear, world):  # noqa: F811
    run, seen = clear
    _slow_blocks(world)
    world.glances, world.witness = False, lambda block: True

    found = run(apart=lambda: _no_slow_blocks(world))
    assert [attempt[:2] for attempt in seen] == [(False, False), (True, False), (True, True)]
    assert found.clear and found.runtime_ms == pytest.approx(1.0, rel=0.01)


def test_nobody_is_kept_away_where_nobody_was(clear, world):  # noqa: F811
    run, seen = clear
    _slow_blocks(world)
    assert not run().clear and [attempt[:2] for attempt in seen] == [(False, False), (True, False)]


def test_who_is_unsteady_by_itself_is_not_asked_for_ever_and_its_last_word_counts(clear):
    run, seen = clear
    found = run(noise=0.4)
    assert len(seen) == again.TIMES and found is seen[-1][2] and not found.clear


def test_who_takes_seconds_keeps_nobody_waiting_twice(clear, world):  # noqa: F811
    run, seen = clear
    before = world.now_s
    _slow_blocks(world)
    found = run(candidate_ms=1000.0)
    assert not found.clear and len(seen) == 1
    assert world.now_s - before < 2 * again.MOST_S


def test_a_wrong_output_ends_it(clear):
    run, seen = clear
    found = run(noise=0.4, wrong_from=40)
    assert isinstance(found, Finding) and len(seen) == 1
