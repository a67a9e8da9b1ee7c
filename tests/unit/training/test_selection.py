"""Dynamic sampling between the collector and the step: dull groups leave with a reason, others take their place."""

import pytest

from core import columns
from core.episodes.episode import Episode, Turn, tombstone
from core.episodes.samples import samples_of
from core.evaluation.verdict import Verdict
from core.flow.collector import Collector
from core.training.selection import DynamicSampling
from core.training.settings import TrainerSettings


def gid(admission):
    return f"{admission:032x}"


def episode(admission, index, *scores, finish="stop"):
    turns = tuple(
        Turn(
            index=n, prompt_ids=columns.pack("ids", [1, 2]), completion_ids=columns.pack("ids", [3, 4]), finish=finish,
            logprobs=columns.pack("logprobs", [-1.0, -1.0]), versions=columns.pack("versions", [0, 0]), score=score,
            verdict=Verdict(candidate_key="k", kind="fail"),
        )
        for n, score in enumerate(scores)
    )  # fmt: skip
    return Episode(group_id=gid(admission), index=index, task_id="t", turns=turns)


def collected(*groups, groups_per_step=2):
    collector, seq = Collector(groups_per_step=groups_per_step), 0
    for admission, members in enumerate(groups):
        for index, scores in enumerate(members):
            seq += 1
            one = (
                tombstone(gid(admission), index, "t", "infra") if scores is None else episode(admission, index, *scores)
            )
            collector.add(seq, one, admission=admission, size=len(members))
    return collector


def settings(**fields):
    return TrainerSettings(model="m", **{"dynamic_sampling": True, **fields})


def test_dull_groups_leave_and_the_next_take_their_place():
    collector = collected(
        [(0.3,), (0.3,), (0.3,)], [(0.0,), (1.0,), (0.3,)], [(0.3,), None, None], [(0.0,), (0.3,), None],
        [(0.0,), (0.0,), None],
    )  # fmt: skip
    selection = DynamicSampling(settings(), gamma=0.4)
    outcomes = selection.rejects(collector.complete())
    assert [(o.admission, o.trained, dict(o.rejected)) for o in outcomes] == [
        (0, (), {0: "all_equal", 1: "all_equal", 2: "all_equal"}),
        (2, (), {0: "singleton", 1: "infra", 2: "infra"}),
        (4, (), {0: "all_equal", 1: "all_equal", 2: "infra"}),
    ]
    collector.consume(outcomes)
    assert [group.admission for group in collector.ready()] == [1, 3]
    assert selection.rejects(collector.complete()) == [], "what was kept is not asked again"


def test_a_group_stays_when_any_of_its_turns_differ():
    turns = collected([(0.0, 1.0), (0.4, 0.0), (0.4,)])  # return-to-go of turn 0: 0.4 each; turn 1 differs
    assert DynamicSampling(settings(), gamma=0.4).rejects(turns.complete()) == []
    whole = settings(credit="trajectory", advantage="group")  # 0.4 each
    assert len(DynamicSampling(whole, gamma=0.4).rejects(turns.complete())) == 1


def test_nothing_is_rejected_without_dynamic_sampling():
    assert DynamicSampling(settings(dynamic_sampling=False), 0.4).rejects(collected([(0.0,), (0.0,)]).complete()) == []


@pytest.mark.parametrize("credit", ["turn", "trajectory"])
def test_samples_say_when_a_turn_was_cut_off(credit):
    whole, cut = episode(0, 0, 0.0), episode(0, 0, 0.0, finish="length")
    assert [s.truncated for s in samples_of(whole, credit=credit, gamma=0.4)] == [False]
    assert [s.truncated for s in samples_of(cut, credit=credit, gamma=0.4)] == [True]
