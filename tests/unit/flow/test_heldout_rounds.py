"""Held-out rounds, worked through with any order of answers, deaths of the sampler and rollbacks of the learner."""

from hypothesis import given, settings
from hypothesis import strategies as st

from core.episodes.heldout_figures import HeldOutEpisode, HeldOutTurn
from core.evaluation.verdict import Verdict
from core.flow.heldout_rounds import HeldOutRounds, heldout_group

TASKS = ("a", "b", "c", "d", "e")


def rounds(every_steps=5, total_steps=100, in_flight=2, tasks=TASKS):
    return HeldOutRounds("run", tasks, every_steps=every_steps, total_steps=total_steps, in_flight=in_flight)


def played(task, *scores, right=False):
    turns = tuple(
        HeldOutTurn(score=score, verdict=Verdict(candidate_key="k", kind="pass" if right else "fail", correct=right))
        for score in scores
    )
    return HeldOutEpisode(task_id=task, turns=turns, end="max_turns", completion_tokens=10)


def test_versions_come_due_once_and_never_the_last_one():
    made = rounds(every_steps=3, total_steps=9)
    begun = []
    for held in (0, 1, 2, 3, 3, 4, 7, 2, 3, 6, 8, 9):
        if made.due(held):
            made.begin(held)
            begun.append(held)
            made.close(held)
    assert begun == [3, 7]


def test_a_late_round_is_of_the_version_that_is_held_then_and_leaves_versions_out():
    made = rounds(every_steps=2)
    made.begin(2)
    assert not made.due(8)
    made.close(2)
    assert made.due(9)
    made.begin(9)
    assert made.open == 9 and not made.due(10)
    made.close(9)
    assert not made.due(9) and made.due(10)


def test_without_tasks_nothing_is_due():
    assert not rounds(tasks=()).due(5)


def test_figures_are_of_what_was_answered_and_the_rest_is_missing():
    made = rounds(tasks=("a", "b", "c"))
    made.begin(5)
    one, two, three = (heldout_group("run", 5, task) for task in ("a", "b", "c"))
    made.answered(one, 5, [played("a", 1.0, right=True), played("a", 0.0, 0.5)])
    made.answered(one, 9, [played("a", 0.0)])  # played twice: the first answer counts
    made.answered(two, 6, [played("b", 0.0)])
    made.answered(heldout_group("run", 4, "c"), 4, [played("c", 1.0)])
    assert not made.complete
    made.answered(three, 5, [])
    assert made.complete
    found = made.result(max_turns=2)
    figures = found.pop("figures")
    assert found == {"version": 5, "oldest": 5, "newest": 6, "tasks": 2, "missing": 1}
    assert figures["reward/mean"] == 0.5 and figures["episodes/played"] == 3.0
    assert figures["correct/by_turn_1"] == 1 / 3 and figures["tokens/completion_mean"] == 10.0


def test_a_round_that_nobody_answered_says_so():
    made = rounds()
    made.begin(5)
    for group_id, _ in rounds_of(5):
        made.answered(group_id, 5, [])
    assert made.result(2) == {
        "version": 5, "oldest": 5, "newest": 5, "tasks": 0, "missing": 5,
        "figures": {"episodes/played": 0.0, "episodes/scored": 0.0},
    }  # fmt: skip


def rounds_of(version):
    return [(heldout_group("run", version, task), task) for task in TASKS]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_nothing_is_asked_for_twice_however_often_the_sampler_dies(data):
    """The queue and the facts outlive the sampler; what stands in the queue is not published again."""
    in_flight = data.draw(st.integers(1, 4))
    made = rounds(every_steps=2, total_steps=20, in_flight=in_flight)
    log, queue, published = [], [], []
    held = 0
    for _ in range(data.draw(st.integers(5, 120))):
        match data.draw(st.sampled_from(["step", "back", "ask", "ask", "answer", "answer", "die"])):
            case "step":
                held += 1
            case "back":
                held = max(0, held - data.draw(st.integers(1, 4)))
            case "ask":
                if made.due(held):
                    log.append(("begun", held))
                    made.begin(held)
                for group_id, _ in made.to_ask():
                    if group_id not in queue:
                        queue.append(group_id)
                        published.append(group_id)
                    made.asked(group_id, 0.0)
                if made.complete:
                    log.append(("evaluated", made.open))
                    made.close(made.open)
            case "answer" if queue:
                group_id = queue.pop(data.draw(st.integers(0, len(queue) - 1)))
                log.append(("answer", group_id))
                made.answered(group_id, held, [played("a", 1.0)])
            case "die":
                made = rounds(every_steps=2, total_steps=20, in_flight=in_flight)
                for kind, what in log:
                    if kind == "answer":
                        made.answered(what, 0, [played("a", 1.0)])
                    else:
                        (made.begin if kind == "begun" else made.close)(what)
        assert len(queue) <= in_flight
    assert len(published) == len(set(published))
    done = [version for kind, version in log if kind == "evaluated"]
    assert done == sorted(set(done)) and all(0 < version < 20 for version in done)
