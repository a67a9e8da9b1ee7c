"""Which stage is named as the slowest, and what its figures are made of."""

import pytest

from core.flow.stages import LIMITS, StageUse, Stretches, limit, limit_of, short, totals, words
from core.present import Present


def busy(generation: float, judging: float, training: float) -> dict[str, float]:
    return {"generation": generation, "judging": judging, "training": training}


@pytest.mark.parametrize(
    ("shares", "episodes", "exposed", "wanted"),
    [
        (busy(0.97, 0.3, 0.4), busy(50, 2, 30), 0.0, "generation"),
        (busy(0.40, 0.96, 0.3), busy(3, 60, 30), 0.0, "judging"),
        (busy(0.30, 0.2, 0.99), busy(4, 2, 80), 0.0, "training"),
        (busy(0.99, 0.97, 0.4), busy(6, 60, 30), 0.0, "judging"),  # an engine is as busy with few sequences
        (busy(0.99, 0.50, 0.98), busy(6, 2, 80), 0.0, "training"),
        (busy(0.97, 0.93, 0.5), busy(40, 30, 25), 0.0, "balanced"),
        (busy(0.95, 0.2, 0.92), busy(30, 5, 50), 0.0, "balanced"),
        (busy(0.30, 0.84, 0.99), busy(4, 12, 70), 0.0, "training"),
        (busy(0.60, 0.4, 0.35), busy(20, 10, 2), 0.0, "staleness"),
        (busy(0.20, 0.2, 0.30), busy(4, 2, 80), 0.65, "publication"),
        (busy(0.20, 0.2, 0.65), busy(4, 2, 80), 0.30, "training"),
        (busy(0.99, 0.97, 0.4), {}, 0.0, "balanced"),  # nothing is known of queues
        (busy(0.99, 0.85, 0.4), {}, 0.0, "generation"),
    ],
)
def test_the_busiest_stage_is_named_where_work_piles_up(shares, episodes, exposed, wanted):
    assert limit_of(shares, episodes, exposed) == wanted


def test_words_are_made_of_a_steps_metrics():
    metrics = {"stage/limit": 2.0, "stage/judging_busy": 0.97, "stage/generation_busy": 0.412, "reward/mean": 0.3}
    assert words(metrics) == "judging, 97 % busy (generation 41 %)"
    assert short(metrics) == "limit judging"
    assert words(metrics | {"stage/limit": 5.0}).startswith("staleness: nobody is busy all the time (generation")
    assert words(metrics | {"stage/limit": 0.0}) == "none, balanced: generation 41 %, judging 97 % busy"
    for unknown in ({}, {"stage/limit": None}, {"stage/limit": 17.0}):
        assert words(unknown) == short(unknown) == limit(unknown) == ""


def told(use: StageUse, seconds: int, *, start: int = 0, pid: int = 1) -> None:
    """Beats of a generator that is busy for 3 s of 10, with 6 sequences then; of 4 judging processes of which 3 are at
    work; and of a learner for which 20 episodes wait."""
    for s in range(start, start + seconds + 1, 2):
        own = s - start
        counted = {"busy_s": 0.3 * own, "sequence_s": 1.8 * own, "awaited_s": 5.0 * own, "tokens_total": 90.0 * own}
        use.see("generator-0", s, counted, "generator", pid)
        use.see("evaluator-0", s, {"busy_s": 3.0 * own, "judged": 1.0 * own, "workers": 4.0, "busy": 1.0})
        use.see("learner-0", s, {"waiting_episodes": 20.0})
        use.see("sampler-0", s, {"open_groups": 1.0})


STEP = {"time/learner_s": 8.0, "time/prepare_exposed_s": 1.0, "time/publish_exposed_s": 0.5, "time/publish_s": 2.0}


def test_figures_are_shares_of_the_time_between_steps():
    use = StageUse(7.0)
    told(use, 200)
    assert use.step(50.0, STEP) == {}, "before the first step everybody was starting"
    figures = {name: pytest.approx(value) for name, value in use.step(70.0, STEP).items()}
    assert figures == {
        "stage/generation_busy": 0.3, "stage/judging_busy": 0.75, "stage/training_busy": 9 / 20,
        "stage/publication_busy": 0.1, "stage/generation_episodes": 1.8, "stage/judging_episodes": 5.0,
        "stage/training_episodes": 20.0, "stage/limit": LIMITS.index("staleness"),
    }  # fmt: skip
    for at in range(80, 190, 10):
        figures = use.step(float(at), STEP)
    assert figures["stage/training_busy"] == pytest.approx(0.9), "over the last half minute, not all of the past"
    assert limit(figures) == "training"


def test_a_long_step_is_one_stretch_of_its_own():
    use = StageUse(7.0)
    told(use, 400)
    use.step(100.0, STEP)
    use.step(110.0, STEP)
    assert use.step(310.0, STEP)["stage/training_busy"] == pytest.approx(9 / 200)


def test_silence_and_new_processes_are_no_time_at_work():
    use = StageUse(7.0)
    told(use, 100)
    told(use, 100, start=300, pid=2)
    use.step(90.0, STEP)
    assert "stage/generation_busy" not in use.step(310.0, STEP), "for most of it nobody counted"
    assert use.step(350.0, STEP)["stage/generation_busy"] == pytest.approx(0.3)


def test_a_process_that_counts_from_0_again_is_another_one():
    one = Stretches(7.0)
    assert one.see("generator-0", 1.0, {"busy_s": 9.0}) is None
    assert one.see("generator-0", 2.0, {"busy_s": 1.0}) is None
    assert one.see("generator-0", 3.0, {"busy_s": 1.5}).gains["busy_s"] == 0.5


def test_older_records_have_who_was_at_work_when_a_beat_came():
    connected = Stretches(7.0)
    beats = [connected.see("evaluator-0", at, {"busy": 1.0, "workers": 2.0, "judged": at}) for at in (2.0, 4.0, 6.0)]
    found = totals([one for one in beats if one is not None], "evaluator", 3.0, 6.0)
    assert (found.gains["busy_s"], found.gains["room"], found.gains["judged"]) == (3.0, 6.0, 3.0)


def test_actors_of_a_kind_are_added_up():
    connected = Stretches(7.0)
    seen = [connected.see(f"generator-{n}", at, {"busy_s": at * n / 4}) for at in (0.0, 4.0) for n in (1, 2)]
    found = totals([one for one in seen if one is not None], "generator", 0.0, 4.0)
    assert (found.seconds, found.actors, found.gains["busy_s"], found.gains["room"]) == (4.0, 2.0, 3.0, 8.0)


def test_presence_counts_those_who_are_still_there(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 4.0, 10.0, 11.0, 20.0])
    monkeypatch.setattr("core.present.time.perf_counter", lambda: next(clock))
    there = Present()
    with there:  # from 1
        with there:  # from 3 to 10
            assert there.count == 2 and there.seconds == 2.0 + 2 * 1.0
        assert there.count == 1
    assert there.count == 0 and there.seconds == 4.0 + 2 * 6.0 + 1.0
