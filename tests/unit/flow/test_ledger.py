"""The ledger: it balances over any history with rollbacks, and it names whatever breaks conservation."""

import random
from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core.flow.ledger import Admission, ChainRecord, EndedEpisode, Outcome, settle, surviving

REASONS = ("infra", "stale", "deadline", "broken")


def step(number: int, *groups: Outcome, incarnation: int = 1) -> ChainRecord:
    return ChainRecord(kind="step", incarnation=incarnation, step=number, groups=groups)


def takes_over(incarnation: int, at: int = 0) -> ChainRecord:
    return ChainRecord(kind="incarnation", incarnation=incarnation, step=at)


def admit(*names: str, size: int = 2) -> list[Admission]:
    return [Admission(group_id=name, admission=number, size=size) for number, name in enumerate(names)]


def whole(name: str, size: int = 2) -> Outcome:
    return Outcome(group_id=name, trained=tuple(range(size)))


class History:
    """A run with rollbacks, and beside it the truth kept another way: what each step consumed, on a stack."""

    def __init__(self, seed: int, actions: int) -> None:
        rng = random.Random(seed)
        self.admissions: list[Admission] = []
        self.chain = [takes_over(1)]
        self.ended: list[EndedEpisode] = []
        self.stack: list[list[Outcome]] = []
        self.given_up: list[tuple[int, Outcome]] = []
        """(after which step, what) of groups that were rejected between steps."""
        open_groups: list[Admission] = []
        incarnation = 1
        for _ in range(actions):
            action = rng.choice(("admit", "admit", "step", "step", "reject", "rollback", "repeat"))
            if action == "admit":
                number = len(self.admissions)
                group = Admission(group_id=f"g{number}", admission=number, size=rng.randint(1, 4))
                self.admissions.append(group)
                open_groups.append(group)
                for index in range(group.size):
                    end = rng.choice(("success", "max_turns", "infra", "deadline"))
                    self.ended.append(EndedEpisode(group_id=group.group_id, index=index, end=end))
            elif action == "step" and open_groups:
                taken = [open_groups.pop(rng.randrange(len(open_groups))) for _ in range(min(2, len(open_groups)))]
                outcomes = [self._outcome(group, rng) for group in taken]
                self.stack.append(outcomes)
                self.chain.append(step(len(self.stack), *outcomes, incarnation=incarnation))
            elif action == "reject" and open_groups:
                group = open_groups.pop(rng.randrange(len(open_groups)))
                lost = Outcome(
                    group_id=group.group_id,
                    admission=group.admission,
                    rejected=tuple((index, "poison") for index in range(group.size)),
                )
                self.given_up.append((len(self.stack), lost))
                record = ChainRecord(kind="rejected", incarnation=incarnation, step=len(self.stack), groups=(lost,))
                self.chain.append(record)
            elif action == "rollback":
                incarnation += 1
                at = rng.randint(0, len(self.stack))
                # A checkpoint is written right after its step: what was rejected at that step came later.
                undone = [outcome for outcomes in self.stack[at:] for outcome in outcomes]
                undone += [outcome for after, outcome in self.given_up if after >= at]
                by_id = {group.group_id: group for group in self.admissions}
                open_groups += [by_id[outcome.group_id] for outcome in undone]
                del self.stack[at:]
                self.given_up = [(after, outcome) for after, outcome in self.given_up if after < at]
                self.chain.append(takes_over(incarnation, at))
            elif action == "repeat" and self.admissions:
                self.admissions.append(rng.choice(self.admissions))

        self.consumed = [outcome for outcomes in self.stack for outcome in outcomes]
        self.consumed += [outcome for _, outcome in self.given_up]

    def _outcome(self, group: Admission, rng: random.Random) -> Outcome:
        ends = {(e.group_id, e.index): e.end for e in self.ended}
        trained, rejected = [], []
        for index in range(group.size):
            end = ends[group.group_id, index]
            if end in ("infra", "deadline"):
                rejected.append((index, end))
            elif rng.random() < 0.2:
                rejected.append((index, "stale"))
            else:
                trained.append(index)
        return Outcome(
            group_id=group.group_id, admission=group.admission, trained=tuple(trained), rejected=tuple(rejected)
        )


histories = st.builds(History, st.integers(0, 2**32), st.integers(0, 60))


@given(histories)
def test_balances_over_any_history_with_rollbacks(history: History) -> None:
    ledger = settle(history.admissions, history.chain, history.ended)
    assert ledger.problems == ()
    assert ledger.balanced
    sizes = {group.group_id: group.size for group in history.admissions}
    consumed_members = sum(len(o.trained) + len(o.rejected) for o in history.consumed)
    assert ledger.episodes.submitted == sum(sizes.values())
    assert ledger.episodes.trained == sum(len(o.trained) for o in history.consumed)
    assert ledger.episodes.rejected == Counter(reason for o in history.consumed for _, reason in o.rejected)
    assert ledger.episodes.pending == sum(sizes.values()) - consumed_members
    assert ledger.groups.pending == len(sizes) - len(history.consumed)
    assert ledger.waiting == ledger.episodes.pending
    assert ledger.step == len(history.stack)
    assert ledger.voided_steps == sum(record.kind == "step" for record in history.chain) - len(history.stack)


@given(histories, st.randoms(use_true_random=False))
def test_every_planted_violation_is_named(history: History, rng: random.Random) -> None:
    trained = [(at, o) for at, outcomes in enumerate(history.stack) for o in outcomes if o.trained]
    if not trained:
        return
    at, victim = rng.choice(trained)
    gid, index = victim.group_id, rng.choice(victim.trained)
    last = len(history.stack)
    incarnation = max(record.incarnation for record in history.chain)

    again = step(last + 1, victim, incarnation=incarnation)
    twice = settle(history.admissions, [*history.chain, again], history.ended)
    assert not twice.balanced
    assert any(f"episode {gid}/{index} was trained twice: step {at + 1}" in problem for problem in twice.problems)

    without = [group for group in history.admissions if group.group_id != gid]
    unadmitted = settle(without, history.chain)
    assert not unadmitted.balanced and not unadmitted.episodes.holds and not unadmitted.groups.holds
    assert unadmitted.problems == (f"group {gid} was consumed at step {at + 1} without admission",)

    def swapped(outcome: Outcome) -> list[ChainRecord]:
        groups = tuple(outcome if o is victim else o for o in history.stack[at])
        steps = [record for record in surviving(history.chain)[0] if record.kind == "step"]
        position = next(n for n, record in enumerate(history.chain) if record is steps[at])
        changed = msgspec.structs.replace(history.chain[position], groups=groups)
        return [*history.chain[:position], changed, *history.chain[position + 1 :]]

    both = msgspec.structs.replace(victim, rejected=(*victim.rejected, (index, "stale")))
    assert settle(history.admissions, swapped(both)).problems == (
        f"episode {gid}/{index} is in both lists of step {at + 1}: trained and rejected",
    )
    size = next(group.size for group in history.admissions if group.group_id == gid)
    more = msgspec.structs.replace(victim, trained=(*victim.trained, size))
    ledger = settle(history.admissions, swapped(more))
    assert ledger.problems == (f"group {gid} has {size} episodes, but step {at + 1} consumed number {size}",)
    assert not ledger.episodes.holds
    fewer = msgspec.structs.replace(victim, trained=tuple(i for i in victim.trained if i != index))
    assert settle(history.admissions, swapped(fewer)).problems == (
        f"step {at + 1} consumed group {gid} without saying what became of episode {index}",
    )


def test_a_rollback_untrains_by_itself() -> None:
    chain = [takes_over(1), step(1, whole("a")), step(2, whole("b")), takes_over(2, at=1)]
    ledger = settle(admit("a", "b"), chain)
    assert (ledger.groups.trained, ledger.groups.pending, ledger.voided_steps) == (1, 1, 1)
    ledger = settle(admit("a", "b"), [*chain, step(2, whole("b"), incarnation=2)])
    assert ledger.balanced and ledger.groups.trained == 2 and ledger.episodes.trained == 4


def test_a_zombies_step_does_not_count_and_is_named() -> None:
    chain = [takes_over(1), takes_over(2), step(1, whole("a"), incarnation=1), step(1, whole("b"), incarnation=2)]
    ledger = settle(admit("a", "b"), chain)
    assert ledger.groups.trained == 1 and not ledger.balanced
    assert ledger.problems == ("step 1 is of incarnation 1, but incarnation 2 had taken over: it does not count",)


def test_gaps_in_the_chain_are_named() -> None:
    ledger = settle(admit("a", "b"), [takes_over(1), step(1, whole("a")), step(3, whole("b"))])
    assert ledger.problems == ("step 3 follows step 1",)
    ledger = settle([], [takes_over(1, at=4)])
    assert ledger.problems == ("incarnation 1 resumed from step 4, but the chain ends at 0",)


def test_what_was_trained_must_have_ended_as_an_episode() -> None:
    ended = [EndedEpisode(group_id="a", index=0, end="infra")]
    ledger = settle(admit("a"), [takes_over(1), step(1, whole("a"))], ended)
    assert ledger.problems == (
        "episode a/0 was trained, but is a tombstone (infra)",
        "episode a/1 was trained, but never ended",
    )
    assert ledger.tombstones == {"infra": 1}


def test_the_first_of_two_ends_counts() -> None:
    ended = [EndedEpisode(group_id="a", index=0, end=end) for end in ("success", "deadline")]
    ledger = settle(admit("a"), [takes_over(1)], ended)
    assert ledger.balanced and ledger.waiting == 1 and ledger.tombstones == {}


def test_group_reasons_and_lines() -> None:
    infra = Outcome(group_id="a", rejected=((0, "infra"), (1, "infra")))
    mixed = Outcome(group_id="b", rejected=((0, "infra"), (1, "stale")))
    ledger = settle(admit("a", "b", "c", "d"), [takes_over(1), step(1, infra, mixed, whole("c"))])
    assert ledger.groups.line() == "4 submitted = 1 trained + 2 rejected (1 infra, 1 mixed) + 1 pending"
    assert ledger.episodes.line() == "8 submitted = 2 trained + 4 rejected (3 infra, 1 stale) + 2 pending"
    assert ledger.as_dict()["balanced"] is True
    assert not ledger.finished


def test_what_was_sampled_for_nothing_is_counted_by_reason() -> None:
    stale = Outcome(group_id="a", rejected=((0, "stale"), (1, "infra")), rejected_tokens=(4000, 0))
    early = Outcome(group_id="b", rejected=((0, "stale"), (1, "stale")))  # of before they were counted
    part = Outcome(group_id="c", trained=(0,), rejected=((1, "stale"),), rejected_tokens=(96,))
    void = Outcome(group_id="d", rejected=((0, "stale"), (1, "stale")), rejected_tokens=(7, 7))
    chain = [takes_over(1), step(1, stale, early, part), step(2, void), takes_over(2, at=1)]
    ledger = settle(admit("a", "b", "c", "d"), chain)
    assert ledger.episodes.rejected_tokens == {"stale": 4096, "infra": 0}
    assert ledger.episodes.line() == (
        "8 submitted = 1 trained + 5 rejected (4 stale of 4,096 tokens, 1 infra) + 2 pending"
    )
    assert ledger.as_dict()["episodes"]["rejected_tokens"]["stale"] == 4096 and not ledger.groups.rejected_tokens


def test_conflicting_admissions_are_named() -> None:
    twice = [Admission(group_id="a", admission=0, size=2), Admission(group_id="a", admission=0, size=3)]
    shared = Admission(group_id="b", admission=0, size=2)
    assert settle([*twice, shared], []).problems == (
        "group a was admitted as number 0 with 2 episodes and again as number 0 with 3",
        "groups a and b share the admission number 0",
    )
