"""Episodes that are too large for a message: whole for the learner and in the record, or a tombstone with a reason."""

import asyncio
import hashlib

import msgspec
import pytest
import structlog

from actors.recorder import Recorder
from bus import claims, codec, facts, subjects
from bus.broker import TooLarge
from bus.messages import Claim, Ended
from bus.nats import NatsBroker
from bus.run_bus import RunBus
from core.clock import SystemClock
from core.record.files import maps
from tests.unit.actors.generator_stage import Stage
from tests.unit.actors.learner_stage import LearnerStage, episode, group_id, healthy, turn

MB = 10**6


def large(admission, index, nbytes=10 * MB):
    """An episode whose prompt is that long: 8 bytes go with a token of a turn, 4 with one of a prompt."""
    return episode(admission, index, turn(prompt=nbytes // 4, seed=index, score=0.1 * index))


def ended(one, size=2):
    return Ended(run_id="run", trace=one.group_id, episode=one, admission=int(one.group_id, 16), size=size)


class Scene:
    """A broker, and actors' own connections to it that know the run's folder."""

    def __init__(self, tmp_path):
        self.stage = LearnerStage(tmp_path)
        self.folder = self.stage.folder

    async def join(self, name):
        server = self.stage.server
        broker = await NatsBroker.connect(server.url, server.token, name=name)
        return RunBus(broker, "run", name, episodes=self.folder.episodes)

    def play(self, main):
        with self.stage:
            self.stage.play(lambda: asyncio.wait_for(main(), 90))


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_an_episode_of_10_mb_is_read_and_recorded_whole_and_then_goes(scene, monkeypatch):
    async def main():
        generator, learner, own = [await scene.join(name) for name in ("generator-0", "learner-0", "recorder-0")]
        sent = [ended(large(0, 0)), ended(episode(0, 1, turn()))]
        for one in sent:
            assert await generator.publish_ended(one)
            assert not await generator.publish_ended(one)
        assert [one for _, one in await learner.read_episodes(1)] == sent
        assert await learner.standing_episodes(group_id(0), 2) == {0, 1}
        [file] = scene.folder.episodes.iterdir()
        assert file.stat().st_size > 10 * MB
        recorder = Recorder(scene.stage.config, own, "recorder-0", scene.folder, SystemClock())
        work = asyncio.create_task(recorder.run())
        async with asyncio.timeout(30):
            while recorder.gauges()["archived_episodes"] < 2:  # noqa: ASYNC110  nothing tells
                await asyncio.sleep(0.05)
        monkeypatch.setattr(claims, "_YOUNG_S", 0.0)
        await recorder._trim(2)
        assert not file.exists()
        recorder.stopping.set()
        await work
        archived = [value for value, _ in maps(scene.folder.record / "episodes.msgpack", 0)]
        assert [msgspec.convert(value, Ended) for value in archived] == sent

    scene.play(main)


def test_a_learner_trains_on_episodes_behind_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "ABOVE", 100)
    connect = LearnerStage._connect

    async def with_folder(self, name):
        bus = await connect(self, name)
        return RunBus(bus.broker, "run", name, episodes=self.folder.episodes)

    monkeypatch.setattr(LearnerStage, "_connect", with_folder)

    async def main():
        async with stage.learner() as (_, work):
            await stage.send(healthy(0), healthy(1))
            assert len(list(stage.folder.episodes.iterdir())) == 8
            [step] = await stage.steps(work, 1)
            assert [group.trained for group in step.groups] == [(0, 1, 2, 3)] * 2

    with LearnerStage(tmp_path) as stage:
        stage.play(main)


@pytest.mark.parametrize("harm", ["lost", "other bytes", "cut"])
def test_a_claim_whose_file_is_not_as_it_was_is_a_tombstone_for_everybody(scene, monkeypatch, harm):
    monkeypatch.setattr(claims, "PATIENCE_S", 0.2)

    async def main():
        generator, learner, recorder = [await scene.join(name) for name in ("generator-0", "learner-0", "recorder-0")]
        await generator.publish_ended(ended(large(3, 1)))
        [file] = scene.folder.episodes.iterdir()
        data = file.read_bytes()
        if harm == "lost":
            file.unlink()
        else:
            file.write_bytes(data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
        found = [await bus.read_episodes(1) for bus in (learner, recorder)]
        assert found[0] == found[1]
        [(_, one)] = found[0]
        assert (one.episode.end, one.episode.episode_id) == ("undecodable", f"{group_id(3)}/1")
        assert (one.admission, one.size) == (3, 2) and file.name in one.episode.detail
        assert learner.refused == recorder.refused == 1

    scene.play(main)


def test_a_file_that_another_host_shows_late_is_waited_for(scene):
    async def main():
        generator, learner = await scene.join("generator-0"), await scene.join("learner-0")
        sent = ended(large(0, 0))
        await generator.publish_ended(sent)
        [file] = scene.folder.episodes.iterdir()
        away = file.rename(file.with_suffix(".away"))
        reading = asyncio.create_task(learner.read_episodes(1))
        await asyncio.sleep(0.3)
        assert not reading.done()
        away.rename(file)
        assert [one for _, one in await reading] == [sent]

    scene.play(main)


def test_a_claim_that_names_a_file_elsewhere_is_refused(scene):
    async def main():
        bus = await scene.join("learner-0")
        secret = scene.folder.root / "secret"
        secret.parent.mkdir(parents=True, exist_ok=True)
        secret.write_bytes(codec.encode(ended(episode(0, 0, turn()))))
        claim = Claim(
            run_id="run", file="../secret", sha256=hashlib.sha256(secret.read_bytes()).hexdigest(),
            nbytes=secret.stat().st_size, admission=0, size=2, task_id="t",
        )  # fmt: skip
        await bus.broker.publish(subjects.episode("run", group_id(0), 0), codec.encode(claim))
        [(_, one)] = await bus.read_episodes(1)
        assert one.episode.end == "undecodable" and "no name of an episode's file" in one.episode.detail

    scene.play(main)


@pytest.mark.parametrize("nbytes", [-1, claims.MAX_BYTES + 1, 2**62, 2**64 - 1])
def test_a_claim_of_a_size_that_no_episode_has_is_refused(tmp_path, nbytes):
    file = f"{'a' * 32}-0-{'b' * 16}.ended"
    (tmp_path / file).write_bytes(b"x")
    claim = Claim(run_id="r", file=file, sha256="", nbytes=nbytes, admission=0, size=1, task_id="t")
    with pytest.raises(codec.Refused, match="at most"):
        asyncio.run(claims.Claims(tmp_path).get(claim))


def test_half_a_file_does_not_stay(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(claims.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        claims._write(tmp_path / "one.ended", b"data")
    assert not list(tmp_path.iterdir())


def test_files_that_nobody_claims_go_and_others_stay(scene, monkeypatch):
    async def main():
        bus = await scene.join("generator-0")
        await bus.publish_ended(ended(large(0, 0)))
        assert not await bus.publish_ended(ended(large(0, 0, 11 * MB)))  # played twice: another file, no claim
        await bus.publish_ended(ended(large(0, 1)))
        (scene.folder.episodes / "notes.ended").write_text("a person's own")
        await bus.trim_episodes(1)
        assert len(list(scene.folder.episodes.iterdir())) == 4  # all of them are young
        monkeypatch.setattr(claims, "_YOUNG_S", 0.0)
        await bus.trim_episodes(1)
        assert len(list(scene.folder.episodes.iterdir())) == 3
        assert len(await bus.read_episodes(1)) == 2

    scene.play(main)


def test_without_a_folder_a_large_episode_is_refused_in_one_line(scene):
    async def main():
        with pytest.raises(TooLarge, match=r"message of type 'ended' has \d+ bytes, the bus takes 8000000"):
            await scene.stage.bus.publish_ended(ended(large(0, 0)))

    scene.play(main)


def test_an_episode_beyond_every_limit_ends_as_a_tombstone_and_its_group_closes(tmp_path, monkeypatch):
    stage = Stage(tmp_path)

    async def main():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        publish = RunBus.publish_ended

        async def limited(self, one):  # episodes of the demo's policy are small: 1 KB is too much here
            data = codec.encode(one)
            if len(data) > 1000:
                raise TooLarge(f"message of type 'ended' has {len(data)} bytes, the bus takes 1000")
            return await publish(self, one)

        monkeypatch.setattr(RunBus, "publish_ended", limited)
        async with stage.generator() as (_, work):
            await stage.request("a", size=2)

            async def closed():
                return len(await stage.episodes()) == 2

            await stage.until(work, closed)
            told = await stage.facts(facts.REFUSED)
            assert len(told) == 2 and "the bus takes 1000" in told[0].data["reason"]
            assert {one.episode.end for one in await stage.episodes()} == {"oversize"}
            assert await stage.facts(facts.POISONED) == []

    with structlog.testing.capture_logs() as logs:
        asyncio.run(asyncio.wait_for(main(), 60))
    assert [line["log_level"] for line in logs if line["event"] == "episode too large"] == ["error"] * 2


def test_a_held_out_answer_that_is_too_large_goes_without_its_kernels(tmp_path):
    stage = Stage(tmp_path)

    async def main():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        async with stage.generator() as (_, work):
            stage.server.max_message = 1800
            await stage.request("held", size=2, heldout=True, version=0)

            async def answered():
                return bool(await stage.facts(facts.HELDOUT))

            await stage.until(work, answered)
            [fact] = await stage.facts(facts.HELDOUT)
            assert len(fact.data["episodes"]) == 2 and "why" not in fact.data
            assert all(turn["candidate"] is None for one in fact.data["episodes"] for turn in one["turns"])

    asyncio.run(asyncio.wait_for(main(), 60))
