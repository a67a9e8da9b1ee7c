"""The rollout generator over an in-memory bus: which weights it samples with, and what becomes of its work."""

import asyncio
import shutil

import pytest
import torch

from bus import facts
from core.generation.errors import EngineStopped, WrongWeights
from core.generation.parity import ParityError
from core.weights.outgoing import Outgoing
from tests.unit.actors.generator_stage import Stage, group_named, versions
from tests.unit.generation.paced import paced


@pytest.fixture(autouse=True)
def found_in_the_middle(monkeypatch):
    paced(monkeypatch)


def run(coroutine, timeout_s=100):
    async def bounded():
        async with asyncio.timeout(timeout_s):
            return await coroutine

    return asyncio.run(bounded())


async def playing(actor, count):
    """Wait until so many episodes are in the middle of an answer."""
    while actor.gauges()["running"] < count:  # noqa: ASYNC110 - another thread's gauges have no event
        await asyncio.sleep(0.01)


async def all_ended(stage, count):
    return len(await stage.episodes()) >= count


def test_no_token_of_weights_that_are_not_proven_reaches_the_log(tmp_path):
    """A version whose fingerprint is another one comes in the middle of sequences; the group is played by the next."""
    stage = Stage(tmp_path, max_new_tokens=120)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (actor, work):
            await stage.request("g")
            await playing(actor, 4)
            folder, _ = stage.write(1, 1.5)
            await stage.policy(1, folder, "0" * 32)
            with pytest.raises(WrongWeights, match=r"version 1: .*the learner published 0000"):
                await work
            assert actor.held() == () and actor.policy_held()[0] == 0
        (refused,) = await stage.facts(facts.WEIGHTS_REFUSED)
        assert refused.data["version"] == 1 and refused.data["wanted"] == "0" * 32
        assert versions(await stage.episodes()) <= {0}
        await stage.policy(2, *stage.write(2))
        async with stage.generator("generator-2") as (_, work):
            await stage.until(work, lambda: all_ended(stage, 4))
        assert not await stage.facts(facts.POISONED)
        return await stage.episodes()

    ended = run(scene())
    assert versions(ended) <= {0, 2} and {e.episode.end for e in ended} == {"max_turns"}


def test_an_engine_that_fails_ends_the_process_and_buries_nothing(tmp_path):
    stage = Stage(tmp_path, max_new_tokens=120)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        for number in range(4):  # more often than a message may fail
            async with stage.generator(f"generator-{number}") as (actor, work):
                if number == 0:
                    await stage.request("g")
                await playing(actor, 4)
                await actor._engine.engine.stop()
                with pytest.raises(EngineStopped):
                    await work
                assert actor.held() == ()
        async with stage.generator("generator-9") as (_, work):
            await stage.until(work, lambda: all_ended(stage, 4))
        assert not await stage.facts(facts.POISONED)
        return await stage.episodes()

    ended = run(scene())
    assert [e.episode.end for e in ended] == ["max_turns"] * 4 and {e.generator for e in ended} == {"generator-9"}


def test_an_update_that_ends_the_engine_counts_against_none_of_its_work(tmp_path):
    """What the generator held is handed back before it dies: its last beat holds nothing."""
    stage = Stage(tmp_path, max_new_tokens=120)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (actor, work):
            await stage.request("g")
            await playing(actor, 4)

            async def failing(source, version, fingerprint=""):
                raise EngineStopped(f"version {version} could not be put in place")

            actor._engine.engine.load_weights = failing
            await stage.policy(1, *stage.write(1))
            with pytest.raises(EngineStopped, match="version 1 could not be put in place"):
                await work
            (last,) = [beat for beat in await stage.bus.beats() if beat.actor == "generator-1"]
            assert last.held == ()
        async with stage.generator("generator-2") as (_, work):
            await stage.until(work, lambda: all_ended(stage, 4))
        assert not await stage.facts(facts.POISONED) and not await stage.facts(facts.WEIGHTS_REFUSED)
        return await stage.episodes()

    assert {e.generator for e in run(scene())} == {"generator-2"}


def test_another_policy_than_the_learners_is_refused_before_anything_is_played(tmp_path):
    """What the engine was sent and what the folder says differ: the probe sees it, whatever fingerprints say."""
    stage = Stage(tmp_path)

    async def scene():
        await stage.open()
        sent, fingerprint = stage.write(0, 1.02)
        folder, _ = stage.write(0, to="folder")
        await stage.policy(0, folder, fingerprint, source=sent)
        await stage.request("g")
        async with stage.generator() as (_, work):
            with pytest.raises(ParityError, match="not training"):
                await work
        return await stage.episodes()

    assert run(scene()) == []


def test_the_probe_can_be_turned_off(tmp_path):
    stage = Stage(tmp_path, parity_max_abs=0, parity_mean_share=0)

    async def scene():
        await stage.open()
        sent, fingerprint = stage.write(0, 1.02)
        folder, _ = stage.write(0, to="folder")
        await stage.policy(0, folder, fingerprint, source=sent)
        await stage.request("g", size=2)
        async with stage.generator() as (_, work):
            await stage.until(work, lambda: all_ended(stage, 2))

    run(scene())


def test_a_generator_that_starts_late_gets_the_version_that_stands_over_the_network(tmp_path):
    """No folder at all: the learner's source serves whoever comes, whenever."""
    stage = Stage(tmp_path, parity_max_abs=0, parity_mean_share=0)

    async def scene():
        await stage.open()
        outgoing = Outgoing("nccl", device=torch.device("cpu"), timeout_s=20)
        manifest = await asyncio.to_thread(outgoing.publish, tmp_path / "copies", 3, stage.weights())
        await stage.policy(3, "", manifest.fingerprint, source=manifest.source)
        for name in ("generator-1", "generator-2"):
            async with stage.generator(name) as (_, work):
                await stage.request(name, size=2)
                await stage.until(work, lambda n=name: all_ended(stage, 2 if n == "generator-1" else 4))
        await asyncio.to_thread(outgoing.close)
        return await stage.episodes()

    assert versions(run(scene())) == {3}


def test_a_source_whose_learner_is_gone_gives_way_to_the_folder(tmp_path):
    stage = Stage(tmp_path)

    async def scene():
        await stage.open()
        outgoing = Outgoing("nccl", device=torch.device("cpu"), timeout_s=20)
        manifest = await asyncio.to_thread(outgoing.publish, tmp_path / "copies", 3, stage.weights())
        await asyncio.to_thread(outgoing.close)
        await stage.policy(3, str(tmp_path / "copies" / "v000003"), manifest.fingerprint, source=manifest.source)
        await stage.request("g", size=2)
        async with stage.generator() as (_, work):
            await stage.until(work, lambda: all_ended(stage, 2))
        return await stage.episodes()

    assert versions(run(scene())) == {3}


def test_a_policy_that_can_not_be_had_waits_for_the_learner_that_takes_over(tmp_path):
    """A rolled-back learner publishes a lower version, with other weights, in another folder."""
    stage = Stage(tmp_path)

    async def scene():
        await stage.open()
        gone, fingerprint = stage.write(5, 1.01, to="i001")
        shutil.rmtree(gone)
        await stage.policy(5, gone, fingerprint)
        async with stage.generator() as (actor, work):
            await asyncio.sleep(0)
            await stage.policy(4, *stage.write(4, to="i002"), incarnation=2)
            await stage.request("g", size=2)
            await stage.until(work, lambda: all_ended(stage, 2))
            assert actor.policy_held()[0] == 4
        return await stage.episodes()

    assert versions(run(scene())) == {4}


def test_held_out_groups_are_of_one_version_and_leave_nothing_to_train_on(tmp_path):
    stage = Stage(tmp_path, max_new_tokens=100)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (actor, work):
            await stage.request("train")
            await stage.request("held", size=3, heldout=True)
            await playing(actor, 7)
            await stage.policy(1, *stage.write(1, 1.01))

            async def answered():
                return await all_ended(stage, 4) and await stage.facts(facts.HELDOUT)

            await stage.until(work, answered)
        return await stage.episodes(), await stage.facts(facts.HELDOUT)

    ended, (answer,) = run(scene())
    assert {e.episode.group_id for e in ended} == {group_named("train")} and len(ended) == 4
    assert answer.data["group_id"] == group_named("held") and answer.data["version"] == 0
    assert [episode["index"] for episode in answer.data["episodes"]] == [0, 1, 2]
    assert {episode["end"] for episode in answer.data["episodes"]} == {"max_turns"}


def test_a_held_out_group_whose_version_was_replaced_is_played_by_the_newer_one(tmp_path):
    stage = Stage(tmp_path, max_new_tokens=120, heldout_hold_s=0)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (actor, work):
            await stage.request("held", size=2, heldout=True)
            await playing(actor, 2)
            await stage.policy(1, *stage.write(1, 1.01))

            async def answered():
                return await stage.facts(facts.HELDOUT)

            await stage.until(work, answered)
        return await stage.facts(facts.HELDOUT), await stage.episodes()

    (answer,), ended = run(scene())
    assert answer.data["version"] == 1 and len(answer.data["episodes"]) == 2 and ended == []


def test_a_held_out_group_waits_for_the_version_that_it_is_about(tmp_path):
    """The learner was set back: a version that is not here yet is not answered for."""
    stage = Stage(tmp_path)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (_, work):
            await stage.request("later", size=1, heldout=True, version=1)
            await stage.request("now", size=1, heldout=True, version=0)

            async def answered(count):
                return len(await stage.facts(facts.HELDOUT)) >= count

            await stage.until(work, lambda: answered(1))
            await stage.policy(1, *stage.write(1, 1.01))
            await stage.until(work, lambda: answered(2))
        return await stage.facts(facts.HELDOUT)

    found = [(answer.data["group_id"], answer.data["version"]) for answer in run(scene())]
    assert found == [(group_named("now"), 0), (group_named("later"), 1)]


def test_greedy_evaluation_takes_the_likeliest_tokens_and_training_draws(tmp_path):
    stage = Stage(tmp_path, parity_max_abs=0, parity_mean_share=0)
    stage.config = stage.config.model_copy(
        update={"evaluation": stage.config.evaluation.model_copy(update={"greedy": True})}
    )

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (actor, work):
            asked = []
            generate = actor._engine.engine.generate

            async def noted(ids, sampling):
                asked.append(sampling.temperature)
                return await generate(ids, sampling)

            actor._engine.engine.generate = noted
            await stage.request("held", size=1, heldout=True)

            async def answered():
                return await stage.facts(facts.HELDOUT)

            await stage.until(work, answered)
            greedy = len(asked)
            await stage.request("train", size=1)
            await stage.until(work, lambda: all_ended(stage, 1))
        return asked[:greedy], asked[greedy:]

    held, trained = run(scene())
    assert set(held) == {0.0} and set(trained) == {1.0}


def test_finished_episodes_of_a_killed_generator_are_not_played_again(tmp_path):
    stage = Stage(tmp_path, batch_rows=2)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        await stage.request("g", size=6)
        async with stage.generator("first") as (actor, work):
            await stage.until(work, lambda: all_ended(stage, 2))
            held = actor.held()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            before = {e.episode.index: e for e in await stage.episodes()}
        for delivery in held:  # as the reaper does for the dead
            await stage.bus.broker.nak_reply(delivery.reply)
        assert 2 <= len(before) < 6
        async with stage.generator("second") as (actor, work):
            await stage.until(work, lambda: all_ended(stage, 6))
            played = actor.gauges()["episodes"]
        return before, played, await stage.episodes()

    before, played, ended = run(scene())
    assert played == 6 - len(before) and sorted(e.episode.index for e in ended) == list(range(6))
    assert all(e in ended and e.generator == "first" for e in before.values())
