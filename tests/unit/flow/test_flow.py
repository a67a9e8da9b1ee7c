"""Admission, window and chain: staleness is bounded, nothing is taken twice, a rollback un-trains by itself."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import columns
from core.episodes.episode import Episode, Turn, tombstone
from core.evaluation.verdict import Verdict
from core.flow.admission import admissible
from core.flow.chain import Chain, GroupOutcome
from core.flow.collector import Collector


class Rec:
    def __init__(self, kind, incarnation, step, groups=()):
        self.kind, self.incarnation, self.step, self.version, self.groups = kind, incarnation, step, step, tuple(groups)


def outcome(admission, trained=(0,), rejected=()):
    return GroupOutcome(group_id=gid(admission), admission=admission, trained=trained, rejected=rejected)


def gid(admission):
    return f"{admission:032x}"


def episode(admission, index=0, version=0, end="max_turns"):
    if end == "infra":
        return tombstone(gid(admission), index, "t", "infra")
    turn = Turn(
        index=0,
        prompt_ids=columns.pack("ids", [1]),
        completion_ids=columns.pack("ids", [2]),
        logprobs=columns.pack("logprobs", [-1.0]),
        versions=columns.pack("versions", [version]),
        verdict=Verdict(candidate_key="k", kind="fail"),
        score=0.0,
    )
    return Episode(group_id=gid(admission), index=index, task_id="t", turns=(turn,), end=end)


def test_a_later_incarnation_voids_what_was_not_checkpointed():
    chain = Chain([Rec("incarnation", 0, 0), Rec("step", 0, 1, [outcome(0)]), Rec("step", 0, 2, [outcome(1)])])
    assert (chain.step, chain.consumed) == (2, 2)
    chain.feed(Rec("incarnation", 1, 1))
    assert (chain.step, chain.consumed) == (1, 1)
    assert chain.outcome(gid(1)) is None
    chain.feed(Rec("step", 1, 2, [outcome(1)]))
    assert chain.consumed == 2
    with pytest.raises(ValueError):
        chain.feed(Rec("step", 0, 3, []))


def test_credits_come_back_when_the_generators_hold_the_new_policy():
    def may(admitted, chain, held):
        return admissible(
            admitted=admitted, chain=chain, held_version=held, max_staleness=1, groups_per_step=2, total_steps=10
        )

    chain = Chain([Rec("incarnation", 0, 0)])
    assert may(0, chain, 0) == 4
    assert may(4, chain, 0) == 0
    chain.feed(Rec("step", 0, 1, [outcome(0), outcome(1)]))
    assert may(4, chain, 0) == 0
    assert may(4, chain, 1) == 2
    chain.feed(Rec("rejected", 0, 1, [outcome(2, trained=(), rejected=((0, "infra"),))]))
    assert may(4, chain, 1) == 3


def test_no_more_is_admitted_than_the_remaining_steps_use():
    chain = Chain([Rec("incarnation", 0, 0)])
    args = dict(chain=chain, held_version=0, max_staleness=4, groups_per_step=2, total_steps=2)
    assert admissible(admitted=0, **args) == 4
    assert admissible(admitted=3, **args) == 1
    chain.feed(Rec("finished", 0, 0))
    assert admissible(admitted=0, **args) == 0


def test_groups_are_whole_and_in_order():
    c = Collector(groups_per_step=2)
    for seq, (admission, index) in enumerate([(1, 0), (1, 1), (0, 0), (2, 0), (2, 1)], 1):
        c.add(seq, episode(admission, index), admission=admission, size=2)
    assert c.ready() == []
    c.add(6, episode(0, 1), admission=0, size=2)
    assert [g.admission for g in c.ready()] == [0, 1]
    c.add(7, episode(0, 1), admission=0, size=2)
    assert c.duplicates == 1


def test_a_rejected_group_does_not_hold_the_window():
    c = Collector(groups_per_step=2)
    c.add(1, episode(0), admission=0, size=1)
    c.add(2, episode(1, end="infra"), admission=1, size=1)
    c.add(3, episode(2), admission=2, size=1)
    assert [g.admission for g in c.ready()] == [0, 2]
    c.consume([g.outcome() for g in c.rejects()])
    assert [g.admission for g in c.ready()] == [0, 2]
    c.consume([g.outcome() for g in c.ready()])
    assert c.oldest_open == 3


def test_a_resumed_collector_knows_what_was_consumed():
    c = Collector(groups_per_step=2)
    log = [(a, episode(a)) for a in (1, 0, 2, 3)]
    for seq, (a, e) in enumerate(log, 1):
        c.add(seq, e, admission=a, size=1)
    c.consume([g.outcome() for g in c.ready()])
    state = c.state()
    assert state.position == 3
    again = Collector(groups_per_step=2, state=state)
    for seq, (a, e) in enumerate(log, 1):
        if seq >= state.position:
            again.add(seq, e, admission=a, size=1)
    again.add(9, episode(0), admission=0, size=1)
    assert again.is_consumed(gid(0)) and again.duplicates == 1
    assert [g.admission for g in again.ready()] == [2, 3]
    assert again.state().consumed == c.state().consumed


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    staleness=st.integers(0, 4),
    per_step=st.integers(1, 4),
    extra_window=st.integers(0, 3),
    reject_share=st.sampled_from([0.0, 0.2]),
)
def test_staleness_is_bounded_whatever_the_speeds(seed, staleness, per_step, extra_window, reject_share):
    """A run in miniature: groups take random times, some are stragglers, some are rejected whole."""
    rng = random.Random(seed)
    steps = 12
    window = per_step + extra_window
    chain, c = Chain([Rec("incarnation", 0, 0)]), Collector(groups_per_step=per_step, window=window)
    admitted, playing, seq, worst = 0, {}, 0, 0
    while chain.step < steps:
        free = admissible(
            admitted=admitted, chain=chain, held_version=chain.version, max_staleness=staleness,
            groups_per_step=per_step, total_steps=steps,
        )  # fmt: skip
        for _ in range(free):
            playing[admitted] = (chain.version, rng.choice([1, 2, 3, 40]))
            admitted += 1
        assert playing or c.ready(), "the flow stood still"
        if playing:
            done = min(playing, key=lambda a: playing[a][1] + rng.random())
            version, _ = playing.pop(done)
            playing = {a: (v, t - 1) for a, (v, t) in playing.items()}
            seq += 1
            end = "infra" if rng.random() < reject_share else "max_turns"
            c.add(seq, episode(done, version=version, end=end), admission=done, size=1)
        if rejects := c.rejects():
            outcomes = [g.outcome() for g in rejects]
            c.consume(outcomes)
            chain.feed(Rec("rejected", 0, chain.step, outcomes))
        if groups := c.ready():
            worst = max(worst, *(chain.version - e.oldest_version for g in groups for e in g.trainable))
            outcomes = [g.outcome() for g in groups]
            c.consume(outcomes)
            chain.feed(Rec("step", 0, chain.step + 1, outcomes))
    assert worst <= staleness + (window - 1) // per_step
    assert not playing and admitted == chain.consumed


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(0, 4))
@settings(max_examples=120, deadline=None)
def test_what_comes_next_is_foretold(seed, per_step, more):
    """`after` says what `ready` will say once a step is consumed, and leaves the collector as it is."""
    rng = random.Random(seed)
    collector = Collector(groups_per_step=per_step, window=per_step + more)
    messages = [(a, i) for a in range(14) for i in range(2)]
    rng.shuffle(messages)
    ends = {a: rng.choice(["max_turns", "max_turns", "infra"]) for a in range(14)}
    for seq, (admission, index) in enumerate(messages, start=1):
        collector.add(seq, episode(admission, index, end=ends[admission]), admission=admission, size=2)
        if rejects := collector.rejects():
            collector.consume([group.outcome() for group in rejects])
        if groups := collector.ready():
            outcomes = [group.outcome({0: "stale", 1: "stale"} if rng.random() < 0.3 else None) for group in groups]
            before = collector.state()
            then = [group.group_id for group in collector.after(outcomes).ready()]
            assert collector.state() == before and collector.ready() == groups
            collector.consume(outcomes)
            assert [group.group_id for group in collector.ready()] == then
