"""What runs beside the learner's steps, over a real broker: it does, in order, and nothing depends on it."""

import asyncio
import threading

import pytest

from actors.learner import Fenced
from bus import facts
from bus.messages import Step
from core.checkpoints import store
from core.flow.chain import Chain
from core.weights import filesystem
from tests.unit.actors.learner_stage import GROUP, LearnerStage, episode, healthy, turn


class Held:
    """A function that begins, then waits until it is let go."""

    def __init__(self, function):
        self.function, self.go, self.begun = function, threading.Event(), []

    def __call__(self, *args, **kwargs):
        self.begun.append(args[1])
        assert self.go.wait(60)
        return self.function(*args, **kwargs)


def test_steps_go_on_beside_a_slow_disk_and_resuming_is_exact(tmp_path, monkeypatch):
    """Steps 1 and 2 are made while the checkpoint of step 1 is written; a learner that resumes from it makes step 2
    again, from the same groups, and has the same weights, bit by bit."""
    write = Held(store.write)
    monkeypatch.setattr(store, "write", write)
    groups = [healthy(n) for n in range(4)]
    with LearnerStage(tmp_path, sampler={"max_staleness": 3}, checkpoints={"every_steps": 1}) as stage:

        async def main():
            async with stage.learner("first") as (_, work):
                await stage.send(*groups)
                steps = await stage.steps(work, 2)
                assert write.begun == [1], "the second checkpoint waits for the first"
                write.go.set()
            assert [r.version for r in steps] == [1, 2]
            assert steps[1].metrics["time/prepare_exposed_s"] < steps[1].metrics["time/prepare_s"] + 1
            whole = store.read_manifest(store.step_folder(stage.folder.checkpoints, 2)).files
            extra = store.read_extra(store.step_folder(stage.folder.checkpoints, 1))
            assert extra.consumed_ids() == {g[0].group_id for g in groups[:2]}, "of its moment, not of the write's"

            (stage.folder.checkpoints / "step-000002").rename(tmp_path / "aside")
            async with stage.learner("second") as (_, work):
                await stage.steps(work, 3)
            chain = await stage.records("incarnation", "step")
            assert [(r.kind, r.incarnation, r.step) for r in chain][2:] == [
                ("step", 0, 2), ("incarnation", 1, 1), ("step", 1, 2),
            ]  # fmt: skip
            assert chain[2].groups == chain[4].groups
            again = store.read_manifest(store.step_folder(stage.folder.checkpoints, 2)).files
            for name in ("weights.safetensors", "optimizer.safetensors", "consumed.bin"):
                assert again[name] == whole[name]

        stage.play(main)


def test_versions_are_announced_in_order_and_each_as_it_was_made(tmp_path, monkeypatch):
    publish = Held(filesystem.publish)
    with LearnerStage(tmp_path, sampler={"max_staleness": 5}, weights={"keep": 9}) as stage:

        async def main():
            async with stage.learner() as (learner, work):
                first = learner._publishing

                async def announced():
                    return await stage.bus.policy() is not None and not first.running

                await stage.until(work, announced)
                monkeypatch.setattr(filesystem, "publish", publish)
                await stage.send(*(healthy(n) for n in range(6)))
                await stage.steps(work, 2)
                assert publish.begun == [1] and (await stage.bus.policy()).version == 0
                publish.go.set()
                await stage.steps(work, 3)
            told = await stage.facts(facts.WEIGHTS_PUBLISHED)
            assert [fact.data["version"] for fact in told] == [0, 1, 2, 3]
            policy = await stage.bus.policy()
            assert policy.version == 3 and policy.fingerprint == filesystem.read_manifest(policy.folder).fingerprint
            kept = store.load(store.step_folder(stage.folder.checkpoints, 2)).weights
            second = filesystem.read(filesystem.version_folder(str(policy.folder).rpartition("/")[0], 2))
            assert all(bool((kept[name] == tensor).all()) for name, tensor in second.items())

        stage.play(main)


def test_a_disk_that_fails_ends_the_learner(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write", full)
    with LearnerStage(tmp_path) as stage:

        async def main():
            with pytest.raises(OSError, match="No space left"):
                async with stage.learner() as (_, work):
                    await stage.send(healthy(0), healthy(1))
                    await stage.steps(work, 1)
                    await asyncio.wait({work}, timeout=60)  # nothing more comes, and it ends all the same

        stage.play(main)


def test_a_checkpoint_of_a_fenced_learner_is_never_told(tmp_path, monkeypatch):
    write = Held(store.write)
    monkeypatch.setattr(store, "write", write)
    with LearnerStage(tmp_path) as stage:

        async def main():
            with pytest.raises(Fenced):
                async with stage.learner() as (_, work):
                    await stage.send(healthy(0), healthy(1))
                    await stage.steps(work, 1)
                    taken_over = Step(run_id="run", kind="incarnation", incarnation=7, step=0, version=0)
                    last = [seq for seq, _ in await stage.bus.read_steps(1)][-1]
                    await stage.bus.append_step(taken_over, after_seq=last)
                    write.go.set()
                    await asyncio.wait({work}, timeout=60)
            assert await stage.facts(facts.CHECKPOINT_WRITTEN) == []
            assert store.latest_committed(stage.folder.checkpoints) is None

        stage.play(main)


def test_a_batch_made_ahead_obeys_the_window_when_it_is_trained(tmp_path):
    """The step before is refused, so that the version stays: what was prepared for the next version is made anew, and
    its members are judged by the version that trains."""
    huge = [[episode(n, i, turn(score=1e38 * (i + 1), seed=i)) for i in range(4)] for n in (2, 3)]
    old = healthy(6)
    old[1] = episode(6, 1, turn(score=0.7, version=-3))
    with LearnerStage(tmp_path, sampler={"max_staleness": 2}) as stage:
        assert stage.config.staleness_bound == 2

        async def main():
            async with stage.learner() as (learner, work):
                await stage.send(healthy(0), healthy(1), *huge, healthy(4), healthy(5), old, healthy(7))
                steps = await stage.steps(work, 3)
                assert learner._ahead.guessed_wrong == 1
            assert [[o.admission for o in s.groups] for s in steps] == [[0, 1], [4, 5], [6, 7]]
            assert [s.version for s in steps] == [1, 2, 3]
            assert dict(steps[2].groups[0].rejected) == {1: "stale"}
            for step in steps:
                assert step.metrics["staleness/max"] <= 2, "of those that were trained"
                assert step.metrics["lag_max"] <= 2

        stage.play(main)


def test_stage_times_are_told(tmp_path):
    with LearnerStage(tmp_path, sampler={"max_staleness": 5}) as stage:

        async def main():
            async with stage.learner() as (_, work):
                await stage.send(*(healthy(n) for n in range(8)))
                steps = await stage.steps(work, 4)
            names = {
                "time/fetch_s", "time/wait_s", "time/prepare_s", "time/prepare_exposed_s", "time/learner_s",
                "time/publish_s", "time/publish_exposed_s", "time/checkpoint_s", "time/checkpoint_exposed_s",
            }  # fmt: skip
            seen = set().union(*(step.metrics for step in steps))
            assert names <= seen
            for step in steps:
                assert all(value >= 0 for name, value in step.metrics.items() if name.startswith("time/"))
                assert step.metrics["step_s"] <= step.metrics["time/learner_s"]

        stage.play(main)


def test_an_orderly_stop_costs_no_step(tmp_path):
    """Nor what was rejected after the latest step: the next learner finds and rejects it again."""
    dull = [episode(5, i, turn(score=0.5, seed=500 + i)) for i in range(GROUP)]
    sections = {"sampler": {"max_staleness": 3}, "learner": {"dynamic_sampling": True}}
    with LearnerStage(tmp_path, **sections, checkpoints={"every_steps": 100}) as stage:

        async def main():
            async def rejected() -> bool:
                return bool(await stage.records("rejected"))

            async with stage.learner("first") as (_, work):
                await stage.send(*[healthy(n) for n in range(4)])
                await stage.steps(work, 2)
                await stage.send(healthy(4), dull)
                await stage.until(work, rejected)
            assert [folder.name for folder in store.committed(stage.folder.checkpoints)] == ["step-000002"]
            assert len(store.read_extra(store.step_folder(stage.folder.checkpoints, 2)).consumed_ids()) == 4

            async with stage.learner("second") as (_, work):
                await stage.send(healthy(6))
                await stage.steps(work, 3)
            chain = Chain(await stage.records("incarnation", "step", "rejected"))
            assert [(r.incarnation, r.step) for r in chain.records if r.kind == "step"] == [(0, 1), (0, 2), (1, 3)]
            assert chain.consumed == 7 and chain.rejected_groups() == 1

            async with stage.learner("third"):
                pass
            kept = [folder.name for folder in store.committed(stage.folder.checkpoints)]
            assert kept == ["step-000002", "step-000003"], "who trained nothing has nothing to keep"

        stage.play(main)
