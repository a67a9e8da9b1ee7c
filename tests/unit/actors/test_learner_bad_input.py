"""What can't be trained on, from the bus to the chain: each kind beside sound groups, each episode accounted for by its
reason, no step with a number that is none, and the run goes on."""

import math

import msgspec
import numpy as np
import pytest

from core.flow.ledger import Admission, ChainRecord, EndedEpisode, Outcome, settle
from tests.unit.actors.learner_stage import (
    BUDGET,
    CONTEXT,
    GROUP,
    LearnerStage,
    episode,
    fallen,
    group_id,
    healthy,
    turn,
)

NAN = float("nan")


def one(make):
    """Members of a group, the second of which is made by `make(admission, index)`."""

    def members(n):
        group = healthy(n)
        group[1] = make(n, 1)
        return group

    return members


def every(make):
    return lambda n: [make(n, i) for i in range(GROUP)]


def broken_last(n, i):
    values = np.full(8, -4.0)
    values[-1] = math.inf
    return episode(n, i, turn(score=0.1, logprobs=values))


def second_turn_broken(n, i):
    return episode(n, i, turn(score=0.2, seed=i), turn(index=1, score=0.5, seed=i, logprobs=NAN))


def in_two_roles(n, i):
    return episode(n, i, turn(score=0.1), msgspec.structs.replace(turn(score=0.2), role="critic"))


KINDS = {
    "nan log-probs of one": (one(lambda n, i: episode(n, i, turn(score=0.5, logprobs=NAN))), {"non_finite": 1}),
    "nan log-probs of all": (every(lambda n, i: episode(n, i, turn(score=0.5, logprobs=NAN))), {"non_finite": 4}),
    "an infinite log-prob": (one(broken_last), {"non_finite": 1}),
    "nan log-probs of a later turn alone": (one(second_turn_broken), {}),
    "a score that is no number": (one(lambda n, i: episode(n, i, turn(score=NAN))), {"non_finite": 1}),
    "empty completion of one": (one(lambda n, i: episode(n, i, turn(completion=0))), {"empty_completion": 1}),
    "empty completions of all": (every(lambda n, i: episode(n, i, turn(completion=0))), {"empty_completion": 4}),
    "an empty turn beside a full one": (one(lambda n, i: episode(n, i, turn(completion=0), turn(index=1))), {}),
    "a group without scores": (every(lambda n, i: episode(n, i, turn(score=None))), {"unscored": 4}),
    "a group of tombstones": (every(fallen), {"infra": 4}),
    "one without a score, one fallen": (
        lambda n: [*healthy(n)[:2], episode(n, 2, turn(score=None)), fallen(n, 3)], {"unscored": 1, "infra": 1}),
    "completions of one token": (every(lambda n, i: episode(n, i, turn(completion=1, score=0.1 * i, seed=i))), {}),
    "an episode that is one token altogether": (
        one(lambda n, i: episode(n, i, turn(prompt=0, completion=1))), {"first_token_trained": 1}),
    "longer than the budget": (one(lambda n, i: episode(n, i, turn(prompt=8, completion=BUDGET))), {}),
    "all longer than the budget": (every(lambda n, i: episode(n, i, turn(prompt=BUDGET, completion=1, seed=i))), {}),
    "longer than the context": (
        one(lambda n, i: episode(n, i, turn(prompt=8, completion=CONTEXT))), {"longer_than_context": 1}),
    "all longer than the context": (
        every(lambda n, i: episode(n, i, turn(prompt=CONTEXT, completion=1, seed=i))), {"longer_than_context": 4}),
    "a turn twice": (one(lambda n, i: episode(n, i, turn(score=0.1), turn(score=0.2))), {"turn_twice": 1}),
    "a turn twice, in two roles": (one(in_two_roles), {"turn_twice": 1}),
    "returns beyond all numbers": (
        one(lambda n, i: episode(n, i, turn(score=1e308), turn(index=1, score=math.inf))), {"non_finite": 1}),
}  # fmt: skip


def settled(groups, records):
    """The account of these groups, from what was sent and what the chain says."""
    chain = [
        ChainRecord(
            kind=r.kind,
            incarnation=r.incarnation,
            step=r.step,
            groups=tuple(Outcome(**msgspec.structs.asdict(o)) for o in r.groups),
        )
        for r in records
    ]
    admitted = [Admission(group_id=g[0].group_id, admission=int(g[0].group_id, 16), size=len(g)) for g in groups]
    ended = [EndedEpisode(group_id=e.group_id, index=e.index, end=e.end) for g in groups for e in g]
    return settle(admitted, chain, ended)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """{kind: (the group's outcome, the record it is in)}, and the whole chain; every bad group beside a sound one."""
    out = {}
    with LearnerStage(tmp_path_factory.mktemp("bad"), sampler={"max_staleness": 50}) as stage:

        async def main():
            async with stage.learner() as (_, work):
                groups = []
                for make, _ in KINDS.values():
                    groups += [make(len(groups)), healthy(len(groups) + 1)]
                groups += [healthy(len(groups)), healthy(len(groups) + 1)]
                await stage.send(*groups)

                async def done():
                    consumed = {o.group_id for r in await stage.records() for o in r.groups}
                    return len(consumed) == len(groups)

                await stage.until(work, done)
            records = await stage.records("incarnation", "step", "rejected")
            for at, kind in enumerate(KINDS):
                out[kind] = next((o, r) for r in records for o in r.groups if o.group_id == group_id(2 * at))
            out["chain"], out["account"] = records, settled(groups, records)
            out["sent"] = {group[0].group_id: group for group in groups}

        stage.play(main)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_each_episode_is_trained_or_rejected_with_its_reason(played, kind):
    outcome, _ = played[kind]
    counted = {}
    for _, reason in outcome.rejected:
        counted[reason] = counted.get(reason, 0) + 1
    assert counted == KINDS[kind][1]
    assert len(outcome.trained) + len(outcome.rejected) == GROUP
    made = {e.index: e.completion_tokens for e in played["sent"][outcome.group_id]}
    assert outcome.rejected_tokens == tuple(made[index] for index, _ in outcome.rejected)


def test_no_step_holds_a_number_that_is_none(played):
    steps = [r for r in played["chain"] if r.kind == "step"]
    assert len(steps) >= len(KINDS) // 2
    for record in steps:
        assert record.metrics["applied"] == 1
        assert {name: v for name, v in record.metrics.items() if not math.isfinite(v)} == {}


def test_the_account_balances(played):
    account = played["account"]
    assert account.balanced, account.problems
    assert account.episodes.pending == 0
    wanted = {}
    for _, reasons in KINDS.values():
        for reason, count in reasons.items():
            wanted[reason] = wanted.get(reason, 0) + count
    assert account.episodes.rejected == wanted
    lost = account.episodes.rejected_tokens
    assert lost["longer_than_context"] == CONTEXT + 4 and lost["infra"] == 0 < lost["unscored"]


def test_metrics_count_what_the_trainer_left_out(played):
    _, record = played["longer than the context"]
    assert record.metrics["refused/longer_than_context"] >= 1
    assert record.metrics["refused_tokens/longer_than_context"] >= CONTEXT
    rejected = sum(len(o.rejected) for o in record.groups)
    assert (record.metrics["episodes/rejected"], rejected > 0) == (rejected, True)
    assert record.metrics["episodes/trained"] == sum(len(o.trained) for o in record.groups)


def test_a_step_that_is_not_finite_is_given_up_and_the_next_one_trains(tmp_path):
    with LearnerStage(tmp_path) as stage:

        async def main():
            huge = [[episode(n, i, turn(score=1e38 * (i + 1), seed=i)) for i in range(GROUP)] for n in range(2)]
            async with stage.learner() as (_, work):
                await stage.send(*huge, healthy(2), healthy(3))
                [step] = await stage.steps(work, 1)
            [given_up] = await stage.records("rejected")
            assert {reason for o in given_up.groups for _, reason in o.rejected} <= {
                "non_finite_loss",
                "non_finite_gradients",
            }
            assert [o.admission for o in step.groups] == [2, 3] and step.version == 1
            assert all(math.isfinite(v) for v in step.metrics.values())

        stage.play(main)
