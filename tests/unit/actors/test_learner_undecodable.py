"""Messages of the episodes' log that nobody can read, over a real broker: their groups are closed all the same, each
such episode is rejected as `undecodable`, the account balances and the run goes on."""

import msgpack
import pytest

from bus import codec, facts, subjects
from bus.messages import Ended
from core.flow.ledger import Admission, ChainRecord, EndedEpisode, Outcome, settle
from tests.unit.actors.learner_stage import GROUP, LearnerStage, group_id, healthy


def plain(admission, index):
    """The message of a sound episode, as plain data."""
    episode = healthy(admission)[index]
    ended = Ended(run_id="run", episode=episode, admission=admission, size=GROUP, trace=episode.group_id)
    return msgpack.unpackb(codec.encode(ended))


def changed(**fields):
    return lambda n, i: msgpack.packb({**plain(n, i), **fields})


def in_turn(**fields):
    def make(n, i):
        message = plain(n, i)
        message["episode"]["turns"][0].update(fields)
        return msgpack.packb(message)

    return make


def in_episode(**fields):
    def make(n, i):
        message = plain(n, i)
        message["episode"].update(fields)
        return msgpack.packb(message)

    return make


WAYS = {
    "cut off": lambda n, i: msgpack.packb(plain(n, i))[:-9],
    "nothing at all": lambda n, i: b"",
    "no MessagePack": lambda n, i: b"\xc1 what is this",
    "of another schema": changed(schema=99),
    "of another kind": changed(type="step"),
    "a field of another type": changed(size="four"),
    "half an id in a prompt": in_turn(prompt_ids=b"\1\0\0\0\2\0"),
    "half an id in a completion": in_turn(completion_ids=b"\1\0\0\0" * 8 + b"\2\0"),
    "half a log-prob": in_turn(logprobs=b"\0\0\0\0" * 8 + b"\0"),
    "half a version": in_turn(versions=b"\0\0\0\0" * 8 + b"\0\0\0"),
    "fewer log-probs than ids": in_turn(logprobs=b"\0\0\0\0"),
    "another episode than its subject says": lambda n, i: in_episode(index=(i + 1) % GROUP)(n, i),
    "another group than its subject says": in_episode(group_id="zz"),
}


async def admit(stage, admission):
    await stage.bus.fact(
        facts.ADMITTED, group_id=group_id(admission), admission=admission, size=GROUP, task_id="t", level=1
    )


async def publish(stage, admission, index, data):
    await stage.bus.broker.publish(subjects.episode("run", group_id(admission), index), data)


async def account(stage, groups):
    """The ledger, from what stands on the bus alone."""
    chain = [
        ChainRecord(
            kind=r.kind, incarnation=r.incarnation, step=r.step,
            groups=tuple(
                Outcome(group_id=o.group_id, admission=o.admission, trained=o.trained, rejected=o.rejected)
                for o in r.groups
            ),
        )
        for r in await stage.records("incarnation", "step", "rejected")
    ]  # fmt: skip
    ended = [message.episode for _, message in await stage.bus.read_episodes(1, limit=1000)]
    return settle(
        [Admission(group_id=group_id(n), admission=n, size=GROUP) for n in range(groups)],
        chain,
        [EndedEpisode(group_id=e.group_id, index=e.index, end=e.end) for e in ended],
    )


@pytest.mark.parametrize("bad", [1, GROUP], ids=["one of a group", "a whole group"])
def test_every_way_to_be_unreadable_closes_its_group_and_is_counted(tmp_path, bad):
    with LearnerStage(tmp_path, sampler={"max_staleness": 50}) as stage:

        async def main():
            async with stage.learner() as (actor, work):
                for n, make in enumerate(WAYS.values()):
                    await admit(stage, n)
                    for i in range(bad):
                        await publish(stage, n, i, make(n, i))
                    for episode in healthy(n)[bad:]:
                        ended = Ended(run_id="run", episode=episode, admission=n, size=GROUP)
                        assert await stage.bus.publish_ended(ended)
                more = len(WAYS) + 3  # sound ones; their number is odd or even as steps of two need it
                more -= (more - (len(WAYS) if bad == GROUP else 0)) % 2
                for n in range(len(WAYS), more):
                    await admit(stage, n)
                    await stage.send(healthy(n))

                async def done():
                    return len({o.group_id for r in await stage.records() for o in r.groups}) == more

                await stage.until(work, done)
                assert actor.bus.refused == bad * len(WAYS)
            books = await account(stage, more)
            assert books.balanced, books.problems
            assert books.episodes.rejected == books.tombstones == {"undecodable": bad * len(WAYS)}
            assert books.episodes.pending == 0 and books.step > 0

        stage.play(main)


def test_what_nobody_admitted_is_passed_over(tmp_path):
    with LearnerStage(tmp_path) as stage:

        async def main():
            async with stage.learner() as (_, work):
                await stage.bus.broker.publish(subjects.episode("run", "zz", 0), b"\xc1")
                await publish(stage, 77, 0, b"\xc1")
                await admit(stage, 0)
                await admit(stage, 1)
                await publish(stage, 0, GROUP, b"\xc1")  # beyond its group's size
                await stage.send(healthy(0), healthy(1))
                [step] = await stage.steps(work, 1)
            assert [o.admission for o in step.groups] == [0, 1]
            books = await account(stage, 2)
            assert books.balanced and books.episodes.trained == 2 * GROUP

        stage.play(main)


def test_before_its_admission_is_told_a_message_may_speak_for_itself(tmp_path):
    with LearnerStage(tmp_path) as stage:

        async def main():
            await publish(stage, 5, 1, in_turn(logprobs=b"\0")(5, 1))
            [(_, ended)] = await stage.bus.read_episodes(1)
            assert (ended.episode.end, ended.episode.group_id, ended.episode.index) == ("undecodable", group_id(5), 1)
            assert (ended.admission, ended.size) == (5, GROUP)
            assert "wanted a multiple of 4" in ended.episode.detail

        stage.play(main)
