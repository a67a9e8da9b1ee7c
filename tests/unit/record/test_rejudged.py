"""What counts as another verdict, what other rewards make of a record, and which kernels are chosen."""

import math

import pytest
from msgspec.structs import replace

from bus.messages import Ended
from core.episodes.episode import Episode, Turn, tombstone
from core.episodes.metrics import batch_metrics
from core.evaluation.reward import score
from core.evaluation.verdict import Verdict
from core.record import reading
from core.record.record import Record
from core.record.rejudged import Choice, difference, figures, read, rescored, which_of
from tests.unit.watching.scene import write_run

PASS = Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speed_kind="measured", speedup=2.0,
               speedup_low=1.9)  # fmt: skip
FAIL = Verdict(candidate_key="k", kind="fail", compiled=True, category="wrong_value")
INFRA = Verdict(candidate_key="k", kind="infra", category="infra")
CANT_TELL = Verdict(candidate_key="k", kind="unsupported", category="unsupported")


def faster(speedup, low=None, **fields):
    return replace(PASS, speedup=speedup, speedup_low=speedup if low is None else low, **fields)


@pytest.mark.parametrize(
    ("was", "now", "wanted"),
    [
        (PASS, PASS, "same"),
        (PASS, FAIL, "verdict"),
        (FAIL, PASS, "verdict"),
        (PASS, CANT_TELL, "verdict"),
        (CANT_TELL, FAIL, "verdict"),
        (FAIL, replace(FAIL, category="race_condition"), "reason"),
        (FAIL, replace(FAIL, compiled=False), "reason"),
        (FAIL, replace(FAIL, feedback="other words", wall_s=9.0), "same"),
        *((some, INFRA, "unjudged") for some in (PASS, FAIL, CANT_TELL, INFRA)),
        *((INFRA, some, "first") for some in (PASS, FAIL, CANT_TELL)),
        (PASS, faster(1.85, 1.7), "same"),  # up to 2.0, and PASS from 1.9 on
        (PASS, faster(1.89, 1.88), "same"),  # apart by no more than clocks of two days are
        (PASS, faster(1.5, 1.4), "speed"),
        (PASS, faster(2.6, 2.5), "speed"),
        (PASS, faster(0.5, speed_kind="modelled"), "same"),  # not the same clock
        (PASS, faster(None), "same"),
    ],
)
def test_a_difference(was, now, wanted):
    assert difference(was, now) == wanted


REWARDS = [{}, {"shape": "kevin"}, {"shape": "milestone"}, {"shape": "threshold", "threshold": 1.5},
           {"compiled": 0.0, "correct": 1.0, "speed_cap": 0.5}]  # fmt: skip


@pytest.mark.parametrize("reward", REWARDS)
def test_another_reward_is_that_of_each_stored_verdict(tmp_path, reward):
    run = write_run(tmp_path / "run", steps=6)
    whole = [row.episode for row in reading.episodes(run)]
    written = read(run, Choice())
    anew = [rescored(episode, lambda verdict: score(verdict, **reward)) for episode in written.episodes]
    assert len(anew) == len(whole) > 90
    for before, after in zip(whole, anew, strict=True):
        wanted = [None if turn.verdict is None else score(turn.verdict, **reward) for turn in before.turns]
        assert [turn.score for turn in after.turns] == wanted and after.end == before.end
        assert before.turns == () or math.isfinite(wanted[0])
    turned = [
        replace(one, turns=tuple(replace(t, score=score(t.verdict, **reward)) for t in one.turns)) for one in whole
    ]
    assert figures(anew)["reward/mean"] == batch_metrics(turned)["reward/mean"]


def turn(index, source, verdict):
    points = None if verdict is None else score(verdict)
    return Turn(index=index, prompt_ids=b"", completion_ids=b"", logprobs=b"", versions=b"", candidate=source,
                verdict=verdict, score=points)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Five episodes; kernel `a` of task x four times, first met by trouble of ours."""
    no_kernel = replace(FAIL, stage="extract", category="no_candidate")
    episodes = [
        Episode(group_id="g", index=0, task_id="x", turns=(turn(0, "a", INFRA),)),
        Episode(group_id="g", index=1, task_id="x", turns=(turn(0, "b", FAIL), turn(1, "a", PASS))),
        Episode(group_id="h", index=0, task_id="y", turns=(turn(0, None, no_kernel), turn(1, "a", CANT_TELL))),
        tombstone("h", 1, "y", "deadline"),
        Episode(group_id="i", index=0, task_id="x", turns=(turn(0, "a", PASS), turn(1, "a", PASS))),
    ]
    with Record(tmp_path / "run") as record:
        record.append_episodes([Ended(run_id="r", episode=one, admission=0, size=2) for one in episodes])
    return tmp_path / "run"


def test_a_kernel_is_a_source_of_a_task_once(run):
    written = read(run, Choice())
    found = [(k.task_id, k.source, k.verdict.kind, k.times, k.episode, k.turn) for k in written.kernels.values()]
    assert sorted(found) == [
        ("x", "a", "pass", 4, "g/1", 1),
        ("x", "b", "fail", 1, "g/1", 0),
        ("y", "a", "unsupported", 1, "h/0", 1),
    ], "with its first verdict that is no trouble of ours"


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (Choice(tasks=("y", "z*")), {("y", "a")}),
        (Choice(kinds=("pass",)), {("x", "a")}),
        (Choice(kinds=("fail", "unsupported")), {("x", "b"), ("y", "a")}),
        (Choice(last=1), {("x", "a")}),
        (Choice(last=99), {("x", "a"), ("x", "b"), ("y", "a")}),
    ],
)
def test_a_choice(run, choice, wanted):
    kernels = read(run, choice).kernels.values()
    assert {(kernel.task_id, kernel.source) for kernel in kernels} == wanted


def test_a_sample_is_the_same_for_the_same_seed(run):
    drawn = [frozenset(read(run, Choice(sample=1, seed=seed)).kernels) for seed in range(20)]
    assert drawn == [frozenset(read(run, Choice(sample=1, seed=seed)).kernels) for seed in range(20)]
    assert {len(one) for one in drawn} == {1} and len(set(drawn)) == 3
    assert len(read(run, Choice(sample=9)).kernels) == 3


def test_new_verdicts_count_in_the_figures_but_for_trouble_of_ours(run):
    written = read(run, Choice())
    (right,) = [which for which, kernel in written.kernels.items() if kernel.source == "a" and kernel.task_id == "x"]
    by_default = [rescored(one, score) for one in written.episodes]
    assert [rescored(one, score, {right: INFRA}) for one in written.episodes] == by_default
    failed = [rescored(one, score, {right: FAIL}) for one in written.episodes]
    turns = [(which_of(e, t) == right, t) for e in failed for t in e.turns]
    assert [t.score for of_it, t in turns if of_it] == [None, 0.1, 0.1, 0.1], "the first had no score, and has none"
    assert figures(failed)["reward/mean"] < figures(by_default)["reward/mean"]
