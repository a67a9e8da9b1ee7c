"""A measurement that tells more of the moment than of the candidate is made again; which counts is not a matter of what
it says of the speed. Children and clock are those of test_gpu_clock.py."""

import pytest
from test_gpu_clock import PROTOCOL, measure, world  # noqa: F401 - fixtures

from core.evaluation.findings import Finding
from core.evaluation.gpu import again, timing


@pytest.fixture
def clear(measure, world):  # noqa: F811
    """`until_clear` over real measurements; `seen` are its attempts: kept apart, blocks asked for, result."""
    seen: list[tuple[bool, int, timing.Measured | Finding]] = []

    def run(baseline_ms=2.0, candidate_ms=1.0, apart=lambda: None, **candidate):
        def once(alone):
            if alone:
                apart()
            one, result = measure(baseline_ms, candidate_ms, PROTOCOL, **candidate)
            seen.append((alone, len(one.blocks), result))
            return result, one.blocks

        return again.until_clear(once, "t", now=world.now)

    return run, seen


def _slow_blocks(world, most, share=2):  # noqa: F811
    """Candidate's and eager's blocks in turn take half as long again, `most` of them, with nothing else to see."""
    left = [most]

    def factor(block):
        if block % share or left[0] <= 0:
            return 1.0
        left[0] -= 1
        return 1.5

    world.disturbed = factor


def test_what_is_clear_is_measured_once(clear):
    run, seen = clear
    found = run()
    assert found.clear and len(seen) == 1 and not seen[0][0]


def test_a_moment_that_nobody_saw_does_not_count(clear, world, caplog):  # noqa: F811
    run, seen = clear
    _slow_blocks(world, most=12)
    found = run()
    assert not seen[0][2].clear and seen[0][2].width > timing.WIDE
    assert found.clear and found.runtime_ms == pytest.approx(1.0, rel=0.01)
    assert [alone for alone, _, _ in seen] in ([False, False], [False, False, False])
    assert "measured again, interval" in caplog.text and "candidate 1" in caplog.text and "eager 2" in caplog.text


def test_the_last_measurement_has_no_first_calls_beside_it(clear, world):  # noqa: F811
    run, seen = clear
    _slow_blocks(world, most=10**9)
    world.glances, world.witness = False, lambda block: True

    def apart():
        world.disturbed = lambda block: 1.0

    found = run(apart=apart)
    assert [alone for alone, _, _ in seen] == [False, False, True]
    assert found.clear and found.runtime_ms == pytest.approx(1.0, rel=0.01)


def test_nobody_is_kept_away_where_nobody_was(clear, world):  # noqa: F811
    run, seen = clear
    _slow_blocks(world, most=10**9)
    assert not run().clear and [alone for alone, _, _ in seen] == [False] * again.TIMES


def test_who_is_unsteady_by_itself_is_not_asked_for_ever_and_its_last_word_counts(clear):
    run, seen = clear
    found = run(noise=0.4)
    assert len(seen) == again.TIMES and found is seen[-1][2] and not found.clear


def test_who_takes_seconds_keeps_nobody_waiting_three_times(clear, world):  # noqa: F811
    run, seen = clear
    before = world.now_s
    _slow_blocks(world, most=10**9)
    found = run(candidate_ms=1000.0)
    assert not found.clear and len(seen) == 1
    assert world.now_s - before < 2 * again.MOST_S


def test_a_wrong_output_ends_it(clear):
    run, seen = clear
    found = run(noise=0.4, wrong_from=40)
    assert isinstance(found, Finding) and len(seen) == 1
