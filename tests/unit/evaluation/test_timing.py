"""Decisions on clock readings: which clock counts, what the interval holds, what a forged reading earns."""

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.evaluation.gpu import timing
from core.evaluation.gpu.timing import Block, Protocol

TIMES = st.floats(min_value=0.001, max_value=1e3)


def _plan(rounds, seed):
    rng = random.Random(seed)
    return [(number, side) for number in range(rounds) for side in timing.one_round(rng)]


def _blocks(baseline_ms, candidate_ms, rng, rounds=3, calls=8, noise=0.01, events=None):
    """Blocks of an honest child whose calls take about these times; `events` is what it says instead."""
    found = []
    for number, side in _plan(rounds, 1):
        true = baseline_ms if side == "baseline" else candidate_ms
        times = true * (1 + noise * rng.standard_normal(calls))
        said = tuple(times) if events is None or side == "baseline" else (events,) * calls
        found.append(Block(side=side, round=number, events_ms=said, wall_ms=float(times.mean())))
    return found


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000))
def test_a_round_is_the_same_backwards_and_has_both_sides(seed):
    sides = timing.one_round(random.Random(seed))
    assert sides[0] == sides[3] != sides[1] == sides[2]


def test_both_orders_of_a_round_are_drawn():
    assert {timing.one_round(random.Random(seed))[0] for seed in range(20)} == {"baseline", "candidate"}


@settings(deadline=None, max_examples=30)
@given(TIMES, TIMES, st.floats(0.0, 1.0), st.floats(0.1, 10))
def test_calls_keep_the_budget_or_the_least(baseline, candidate, flush, budget):
    protocol = Protocol(budget_s=budget)
    calls = timing.calls_per_block(protocol, baseline, candidate, flush)
    assert 1 <= calls <= protocol.most_calls
    each_s = 2 * protocol.rounds * (baseline + candidate + 2 * flush) / 1e3
    assert calls in (1, protocol.least_calls) or calls * each_s <= budget * 1.0001
    assert calls >= protocol.least_calls or protocol.least_calls * each_s > timing.MOST_BUDGETS * budget


def test_slow_calls_get_the_least_number_and_fast_ones_the_most():
    protocol = Protocol(budget_s=1.0)
    assert timing.calls_per_block(protocol, 50.0, 50.0, 0.1) == protocol.least_calls
    assert timing.calls_per_block(protocol, 500.0, 500.0, 0.1) == 1
    assert timing.calls_per_block(protocol, 0.01, 0.01, 0.1) == protocol.most_calls


@settings(deadline=None, max_examples=30)
@given(st.lists(TIMES, min_size=1, max_size=20), TIMES)
def test_no_reading_makes_a_call_faster_than_the_wall_allows(events, wall):
    times = timing.agreed(events, wall).times_ms
    mean = sum(times) / len(times)
    assert mean * timing.WALL_RATIO + timing.WALL_SLACK_MS >= wall * 0.9999
    assert len(times) == len(events)


ANY = st.one_of(TIMES, st.floats(min_value=0.0, allow_infinity=False), st.just(5e-324), st.just(1.7e308))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.lists(ANY, min_size=n, max_size=n), min_size=4, max_size=4)))
@pytest.mark.parametrize("wall", [0.015, 2.0])
def test_whatever_a_candidate_reads_its_time_is_one_that_the_wall_allows(wall, readings):
    """The time is the median of all calls: readings of which a few bear a block's time leave it free. And what is made
    of readings are numbers: a lower end that is none would be a reward that is none, an upper one skips what follows."""
    blocks = []
    for number, said in enumerate(readings):
        blocks.append(Block(side="baseline", round=number // 2, events_ms=(1.0,) * len(said), wall_ms=1.0))
        blocks.append(Block(side="candidate", round=number // 2, events_ms=tuple(said), wall_ms=wall))
    found = timing.measured(blocks, 0.0, np.random.default_rng(0))
    assert found.runtime_ms >= 0.9999 * max(0.0, wall - timing.WALL_SLACK_MS) / timing.WALL_RATIO
    numbers = (found.speedup, found.speedup_low, found.speedup_high, found.width, found.outliers)
    assert all(map(math.isfinite, (*numbers, *found.statistics.values())))
    assert 0 < found.speedup_low <= found.speedup <= found.speedup_high
    assert timing.measured(blocks, 0.5, np.random.default_rng(0)).speedup <= 2.0001


@pytest.mark.parametrize("share", [0.52, 0.6, 0.8, 0.96])
def test_a_block_whose_time_is_in_a_few_readings_counts_by_the_wall(share):
    calls = 25
    few = calls - round(share * calls)
    said = (1e-3,) * (calls - few) + (2.0 * calls / few,) * few
    assert timing.agreed(said, 2.0).clock == "wall"
    slow_at_times = (2.0,) * 23 + (3.0,) * 2
    assert timing.agreed(slow_at_times, sum(slow_at_times) / calls).clock == "events"
    # Eager's child has no reason to; a call of it that took long does not make eager slow.
    stalled = (2.0,) * 20 + (8.0,) * 5
    assert timing.agreed(stalled, sum(stalled) / calls, trusted=True).times_ms == stalled


@settings(deadline=None, max_examples=30)
@given(TIMES, st.floats(0.0, 0.05))
def test_honest_events_count(true, overhead):
    assert timing.agreed((true, true), true * (1 + overhead)).clock == "events"


@pytest.mark.parametrize(
    "events", [(float("nan"), 1.0), (float("inf"), 1.0), (-1.0, 1.0), (0.0, 1.0), (5e-324,) * 2, (1e308, 1.0), ()]
)
def test_impossible_events_never_count(events):
    agreed = timing.agreed(events, 2.0)
    assert agreed.clock == "wall" and set(agreed.times_ms) == {2.0}


def test_work_on_another_stream_is_seen_by_the_wall():
    measured = timing.measured(_blocks(2.0, 2.0, np.random.default_rng(0), events=0.001), 0.0, np.random.default_rng(1))
    assert measured.clock == "wall"
    assert measured.speedup == pytest.approx(1.0, rel=0.03)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.1, 10), st.floats(0.2, 5))
def test_the_interval_holds_the_true_ratio_of_steady_times(baseline, ratio):
    rng = np.random.default_rng(3)
    measured = timing.measured(_blocks(baseline, baseline / ratio, rng, noise=0.002), 0.0, np.random.default_rng(4))
    assert measured.speedup_low <= measured.speedup <= measured.speedup_high
    assert measured.speedup_low == pytest.approx(ratio, rel=0.02)
    assert measured.speedup_high == pytest.approx(ratio, rel=0.02)
    assert measured.steady


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 0.2))
def test_noise_widens_the_interval_downwards(noise):
    quiet, loud = (
        timing.measured(_blocks(1.0, 0.5, np.random.default_rng(5), noise=n), 0.0, np.random.default_rng(6))
        for n in (noise / 20, noise)
    )
    assert loud.speedup_low < quiet.speedup_low


def test_the_interval_depends_on_its_generator_alone():
    blocks = _blocks(1.0, 0.5, np.random.default_rng(7))
    first, second = (timing.measured(blocks, 0.0, np.random.default_rng(8)) for _ in range(2))
    assert first == second


@settings(deadline=None, max_examples=30)
@given(st.floats(0.05, 0.9))
def test_nothing_is_faster_than_the_floor(share):
    floor = 1.0
    measured = timing.measured(_blocks(4.0, share * floor, np.random.default_rng(9)), floor, np.random.default_rng(2))
    assert measured.below_floor and measured.runtime_ms == floor
    assert measured.speedup_high <= 4.0 * 1.05
    assert measured.roofline_share == 1.0


def test_drift_and_outliers_make_it_unsteady():
    rng = np.random.default_rng(10)
    blocks = _blocks(1.0, 0.5, rng)
    growing = [
        Block(side=b.side, round=b.round, events_ms=tuple(t * (1 + 0.02 * i) for t in b.events_ms),
              wall_ms=b.wall_ms * (1 + 0.02 * i))
        for i, b in enumerate(blocks)
    ]  # fmt: skip
    assert not timing.measured(growing, 0.0, rng).steady
    noisy = []
    for b in blocks:
        times = tuple(t * (3 if n % 3 == 0 else 1) for n, t in enumerate(b.events_ms))
        noisy.append(Block(side=b.side, round=b.round, events_ms=times, wall_ms=b.wall_ms))
    assert not timing.measured(noisy, 0.0, rng).steady


def test_alternation_cancels_a_linear_drift():
    blocks = []
    for index, (number, side) in enumerate(_plan(4, 11)):
        time = (1.0 if side == "baseline" else 0.5) * (1 + 0.01 * index)
        blocks.append(Block(side=side, round=number, events_ms=(time,) * 5, wall_ms=time))
    assert timing.measured(blocks, 0.0, np.random.default_rng(0)).speedup == pytest.approx(2.0, rel=0.02)


def test_the_floor_counts_what_must_come_from_memory():
    assert timing.roofline_floor_ms(4e9, 4e9, 0, 4000, 500, 0) == pytest.approx(2.0)
    assert timing.roofline_floor_ms(4e9, 30e6, 0, 4000, 500, 50e6) == pytest.approx(1.0)
    assert timing.roofline_floor_ms(1e6, 1e6, 5e12, 4000, 500, 0) == pytest.approx(10.0)


def test_flushes_and_the_way_to_the_child_are_taken_off():
    assert timing.flushed(total_ms=10.5, flush_ms=0.1, idle_ms=0.5, calls=10) == pytest.approx(0.9)
    assert timing.flushed(total_ms=1.0, flush_ms=0.5, idle_ms=0.5, calls=10) == pytest.approx(-0.45)
    with pytest.raises(ValueError, match="0 calls"):
        timing.flushed(1.0, 0.1, 0.1, 0)


@pytest.mark.parametrize(("flush_ms", "idle_ms"), [(5.0, 0.0), (0.0, 40.0), (5.0, 40.0)])
def test_what_was_taken_off_the_wall_too_much_is_put_back(flush_ms, idle_ms):
    """Where it was learned on a machine that was kept busy, no events are contradicted."""
    less_ms, rng = flush_ms + idle_ms / 8, np.random.default_rng(15)

    def taken_off(blocks):
        return [msgspec.structs.replace(block, wall_ms=block.wall_ms - less_ms) for block in blocks]

    forged = taken_off(_blocks(2.0, 2.0, rng, events=1e-3))
    found = timing.measured(forged, 0.0, rng)
    assert found.clock == "events" and found.speedup > 100
    again = timing.reread(found, forged, flush_ms, idle_ms, rng)
    assert again.clock == "wall" and again.speedup == pytest.approx(1.0, rel=0.02)
    honest = taken_off(_blocks(2.0, 1.0, rng))
    found = timing.measured(honest, 0.0, rng)
    again = timing.reread(found, honest, flush_ms, idle_ms, rng)
    assert again.clock == "events" and again.speedup == found.speedup and again.runtime_ms == found.runtime_ms
    assert timing.reread(found, honest, 1e-3, 1e-2, rng) is found  # as it was, about
    assert timing.reread(found, honest, -1.0, -1.0, rng) is found


def _disturbed_session(rng, protocol, ratio):
    """Rounds until it is enough, on a GPU whose speed wanders from block to block and whose calls are skewed."""
    blocks, spent_s, level = [], 0.0, 0.0
    for number in range(protocol.most_rounds):
        for side in timing.one_round(random.Random(int(rng.integers(1 << 30)))):
            level = 0.8 * level + 0.004 * rng.standard_normal()
            true = 1.0 if side == "baseline" else 1 / ratio
            times = true * (1 + level) * (1 + 0.01 * rng.gamma(2.0, 1.0, 25))
            blocks.append(Block(side=side, round=number, events_ms=tuple(times), wall_ms=float(times.mean())))
            spent_s += float(times.sum()) / 1e3
        if number + 1 >= protocol.rounds:
            found = timing.measured(blocks, 0.0, rng)
            if timing.enough(found, spent_s, protocol):
                return found
    raise AssertionError("the last round is always enough")


def test_the_lower_end_stays_honest_when_rounds_stop_early():
    """What a reward uses may exceed the true ratio now and then by chance, never by much."""
    rng, protocol = np.random.default_rng(12), Protocol(budget_s=1.0)
    found = [_disturbed_session(rng, protocol, 1.7) for _ in range(80)]
    above = [one.speedup_low / 1.7 - 1 for one in found if one.speedup_low > 1.7]
    assert len(above) <= 0.2 * len(found)
    assert max(above, default=0.0) < 0.01
    assert float(np.median([one.speedup for one in found])) == pytest.approx(1.7, rel=0.005)
    assert {one.rounds for one in found} >= {2}


def test_rounds_go_on_while_the_interval_is_wide_and_the_budget_lasts():
    rng = np.random.default_rng(13)
    narrow = timing.measured(_blocks(1.0, 0.5, rng, rounds=2, noise=0.001), 0.0, rng)
    wide = timing.measured(_blocks(1.0, 0.5, rng, rounds=2, noise=0.2), 0.0, rng)
    protocol = Protocol(budget_s=1.0)
    assert timing.enough(narrow, 0.1, protocol)
    assert not timing.enough(wide, 0.1, protocol)
    assert timing.enough(wide, 0.7, protocol)
    assert not timing.enough(narrow, 0.1, Protocol(rounds=3))


def test_only_blocks_with_a_witness_are_made_again():
    rng = np.random.default_rng(14)
    for witnessed in (False, True):
        blocks = _blocks(1.0, 0.5, rng, noise=0.001)
        for index in (1, 4):
            slow = tuple(1.3 * time for time in blocks[index].events_ms)
            blocks[index] = Block(
                side=blocks[index].side, round=0, events_ms=slow, wall_ms=1.3 * blocks[index].wall_ms,
                witnessed=witnessed,
            )  # fmt: skip
        blocks[2] = Block(side=blocks[2].side, round=0, events_ms=blocks[2].events_ms, wall_ms=blocks[2].wall_ms,
                          witnessed=True)  # fmt: skip
        assert timing.disturbed(blocks) == ([1, 4] if witnessed else [])


@pytest.mark.parametrize(
    "bad",
    [{"rounds": 1}, {"most_rounds": 1}, {"least_calls": 0}, {"least_calls": 9, "most_calls": 3}, {"budget_s": 0.0}],
)
def test_a_protocol_that_measures_nothing_is_refused(bad):
    with pytest.raises(ValueError, match=r"wanted|at least"):
        Protocol(**bad)


def test_rounds_without_one_side_are_refused():
    with pytest.raises(ValueError, match="rounds"):
        timing.ratio_interval([[1.0]], [[1.0], [2.0]], np.random.default_rng(0))
    with pytest.raises(ValueError, match="both sides"):
        timing.measured([Block(side="baseline", round=0, events_ms=(1.0,), wall_ms=1.0)], 0.0, np.random.default_rng(0))
