"""What is predicted of other splits, where the answer is known; and what holds for any run."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import splits
from configs.schema import RunConfig
from core.flow.plan import Assumed, Measured, Split, bounds, fewest_ranks, line, predict, ranked, scaling_of

RUN = Measured(
    first_step=10,
    last_step=20,
    wall_s=100.0,
    episodes_per_step=32.0,  # 3.2 episodes/s
    open_episodes=96,
    generators=2.0,
    generation_s=0.25,
    sequences=20.0,
    tokens_per_episode=300.0,
    turns_per_episode=2.0,
    workers=4.0,
    judging_s=1.25,
    judged_per_episode=1.9,
    judge_cards=2,
    ranks=4,
    learner_s=4.0,
    exposed_s=0.0,
    publish_s=1.0,
)
OWN = Split(4, 2, 4, 2)


def changed(**values) -> Measured:
    return msgspec.structs.replace(RUN, **values)


def test_each_stage_has_its_capacity():
    found = bounds(RUN, Split(8, 3, 6, 2), Assumed(scaling=1.0))
    assert found["generation"] == pytest.approx(3 / 0.25)
    assert found["judging"] == pytest.approx(6 / 1.25)
    assert found["training"] == pytest.approx(32 / 2.0)
    assert found["staleness"] == pytest.approx(96 / (2.0 + 1.25 + 1.0))
    assert set(found) == {"generation", "judging", "training", "staleness"}


def test_the_run_itself_is_predicted_as_it_was():
    found = predict(RUN, OWN, OWN, Assumed())
    assert found.episodes_per_s == pytest.approx(3.2) and found.steps_per_s == pytest.approx(0.1)
    assert found.limit == "judging"
    assert found.idle == {"generation": pytest.approx(0.6), "judging": 0.0, "training": pytest.approx(0.6)}
    slower = changed(wall_s=125.0)  # it reached 80 % of what its judges allow, and so do others
    assert predict(slower, OWN, OWN, Assumed()).episodes_per_s == pytest.approx(2.56)
    assert predict(slower, OWN, Split(4, 2, 8, 2), Assumed()).episodes_per_s == pytest.approx(5.12)


def test_one_candidate_at_a_time_is_measured_on_a_card():
    leased = changed(lease_s=0.5)
    assert predict(leased, OWN, Split(4, 2, 8, 2), Assumed()).limit == "lease"
    assert predict(leased, OWN, Split(4, 2, 8, 2), Assumed()).episodes_per_s == pytest.approx(4.0)
    assert predict(leased, OWN, Split(4, 2, 8, 4), Assumed()).episodes_per_s == pytest.approx(6.4)


def test_twice_the_ranks_are_as_fast_as_was_assumed():
    learner = changed(judging_s=None, learner_s=10.0)
    four = predict(learner, OWN, OWN, Assumed(scaling=0.8))
    eight = predict(learner, OWN, Split(8, 2, 4, 2), Assumed(scaling=0.8))
    assert four.limit == "training" and eight.episodes_per_s == pytest.approx(1.6 * four.episodes_per_s)
    half = predict(learner, OWN, Split(8, 2, 4, 2), Assumed(scaling=0.5))
    assert half.episodes_per_s == pytest.approx(four.episodes_per_s)


def test_two_runs_tell_how_a_learner_scales():
    assert scaling_of(RUN, changed(ranks=8, learner_s=2.5)) == pytest.approx(0.8)
    assert scaling_of(RUN, changed(ranks=1, learner_s=12.8)) == pytest.approx(math.sqrt(3.2) / 2)
    assert scaling_of(RUN, changed(ranks=8, learner_s=5.0, tokens_per_episode=600.0)) == pytest.approx(0.8)
    assert scaling_of(RUN, changed(ranks=8, learner_s=9.0)) == 0.5, "no slower, whatever noise says"
    with pytest.raises(ValueError, match="both runs had 4"):
        scaling_of(RUN, RUN)


def test_engines_gain_little_where_few_sequences_are_open():
    """8 open episodes that take 4 s in an engine whoever is beside them: more engines can't make that shorter."""
    few = changed(judging_s=None, learner_s=0.5, publish_s=0.0, alone_s=4.0, beside_s=0.001, open_episodes=8)
    one, two = (predict(few, OWN, Split(4, n, 4, 2), Assumed()) for n in (2, 4))
    assert one.limit == two.limit == "staleness"
    assert one.episodes_per_s <= two.episodes_per_s < 1.01 * one.episodes_per_s
    more = predict(few, OWN, Split(4, 2, 4, 2), Assumed(open_episodes=16))
    assert more.episodes_per_s > 1.9 * one.episodes_per_s
    full = changed(judging_s=None, learner_s=0.5, publish_s=0.0, alone_s=1.0, beside_s=0.25, open_episodes=960)
    assert predict(full, OWN, OWN, Assumed()).limit == "generation"
    # x * alone / (1 - x / capacity) + x * elsewhere = open, with the known root
    x = bounds(full, OWN, Assumed())["staleness"]
    assert x * 1.0 / (1 - x * 0.25 / 2) + x * 0.5 == pytest.approx(960)


def test_processes_share_the_cores_of_a_machine():
    cpu = changed(ranks=1, judge_cards=0, generators=1.0, workers=1.0, wall_s=160.0, generation_s=0.1, judging_s=0.5)
    own = Split(1, 1, 1)  # 2 episodes/s, of 0.1 + 0.5 + 0.125 core seconds each
    assert predict(cpu, own, Split(1, 1, 2), Assumed(cores=8)).limit == "judging"
    crowded = predict(cpu, own, Split(1, 1, 2), Assumed(cores=2))
    assert crowded.limit == "cores" and crowded.episodes_per_s == pytest.approx(2 / 0.725)
    # Busy for longer than there was time: they waited for a core, and one process more has nothing to run on.
    assert predict(cpu, own, Split(1, 1, 2), Assumed(cores=1)).episodes_per_s == pytest.approx(2.0)


def test_another_recipes_groups_are_planned_for():
    twice = predict(RUN, OWN, OWN, Assumed(episodes_per_step=64.0, open_episodes=192))
    assert twice.steps_per_s == pytest.approx(0.05) and twice.episodes_per_s == pytest.approx(3.2)


def test_the_learner_has_as_many_cards_as_hold_it():
    assert fewest_ranks(RUN, None) == 4
    held = changed(peak_gib=50.0, state_gib=120.0)  # 30 of each rank's 50 GiB are its part of the state
    assert fewest_ranks(held, None) == 4, "the size of a card was not said"
    assert fewest_ranks(held, 80.0) == math.ceil(120 / (0.92 * 80 - 20))
    assert fewest_ranks(held, 200.0) == 1
    assert fewest_ranks(changed(peak_gib=50.0), 200.0) == 4, "an adapter's state is not known"


def test_a_line_is_drawn_where_points_tell_it():
    points = [(float(n), 0.2 + 0.03 * n, 1.0 + n % 3) for n in range(1, 12)]
    assert line(points) == (pytest.approx(0.2), pytest.approx(0.03))
    assert line(points[:5]) is None, "too few"
    assert line([(8.0 + n / 100, y, w) for n, (_, y, w) in enumerate(points)]) is None, "too even"
    assert line([(x, 1.0 - y, w) for x, y, w in points]) is None, "faster with more beside it: noise"
    assert line([(x, y - 0.3, w) for x, y, w in points]) is None, "less than no time alone: noise"


positive = st.floats(0.01, 100.0)
runs = st.builds(
    changed,
    wall_s=positive,
    generation_s=positive,
    judging_s=st.none() | positive,
    lease_s=st.none() | positive,
    alone_s=positive,
    beside_s=positive,
    learner_s=positive,
    exposed_s=st.floats(0, 10.0),
    publish_s=st.floats(0, 10.0),
    open_episodes=st.integers(1, 500),
) | st.builds(changed, generation_s=positive, judging_s=st.none() | positive, learner_s=positive)
assumptions = st.builds(
    Assumed,
    scaling=st.floats(0.5, 1.0),
    cores=st.none() | st.integers(1, 64),
    episodes_per_step=st.none() | positive,
    open_episodes=st.none() | positive,
)
CONFIG = RunConfig.model_validate(
    {"model": {"path": "m"}, "learner": {"ranks": 4}, "rollout": {"cards": [4, 5]},
     "judge": {"device_class": "gpu", "speed": "measured", "workers": 4, "cards": [6, 7]}, "local": {"generators": 2}}
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(runs, assumptions, st.integers(4, 12))
def test_more_cards_are_never_slower(run, assumed, cards):
    best = []
    for total in (cards, cards + 1):
        ways = splits.on_cards(CONFIG, OWN, total, 2)
        assert all(way.ranks + way.generators + way.judge_cards == total for way in ways)
        found = ranked(run, OWN, ways, assumed)
        assert found[0].episodes_per_s >= 0.94 * max(one.episodes_per_s for one in found), "the first is as fast as any"
        best.append(max(one.episodes_per_s for one in found))
    assert best[1] >= best[0] * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(runs, assumptions, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_more_of_one_stage_is_never_slower(run, assumed, ranks, generators, judges):
    split = Split(ranks, generators, 2 * judges, judges)
    rate = predict(run, OWN, split, assumed).episodes_per_s
    more = (
        split._replace(ranks=ranks + 1),
        split._replace(generators=generators + 1),
        split._replace(workers=2 * judges + 1),
        split._replace(judge_cards=judges + 1),
    )
    assert all(predict(run, OWN, one, assumed).episodes_per_s >= rate * (1 - 1e-9) for one in more)
    assert all(0 <= share <= 1 for share in predict(run, OWN, split, assumed).idle.values())


@given(st.integers(1, 3), st.integers(1, 12))
def test_processes_are_all_dealt_out(ranks, total):
    ways = splits.on_processes(Split(ranks, 1, 1), total)
    assert all(way.ranks + way.generators + way.workers == total and way.generators > 0 for way in ways)
    assert len(ways) == max(0, total - ranks - 1)
