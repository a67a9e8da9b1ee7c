"""What a learner goes on from when its run's checkpoints were touched: a whole one, or it says what is missing."""

import asyncio
import json
import resource
import shutil

import pytest

from actors.learner_parts import LostCheckpoints
from bus import facts
from configs.schema import RunConfig
from core.checkpoints import store
from core.weights.room import NoRoom
from runners.cli import is_users_fault
from tests.unit.actors.learner_stage import LearnerStage, healthy


def _cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path):
    """Of the same size, and a tensor file still: only its hash tells."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "optimizer.safetensors is missing": lambda folder: (folder / "optimizer.safetensors").unlink(),
    "no readable manifest.json": lambda folder: (folder / "manifest.json").unlink(),
    "weights.safetensors has": lambda folder: _cut(folder / "weights.safetensors"),
    "weights.safetensors has another sha256": lambda folder: _flip(folder / "weights.safetensors"),
    "optimizer.safetensors has another sha256": lambda folder: _flip(folder / "optimizer.safetensors"),
    "state.json is missing": lambda folder: (folder / "state.json").unlink(),
}


@pytest.fixture
def stage(tmp_path):
    with LearnerStage(tmp_path, sampler={"max_staleness": 3}) as made:
        yield made


async def _two_steps(stage):
    async with stage.learner("first") as (_, work):
        await stage.send(*(healthy(n) for n in range(4)))
        await stage.steps(work, 2)


@pytest.mark.parametrize("why", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_serves(stage, why):
    async def main():
        await _two_steps(stage)
        newest = store.step_folder(stage.folder.checkpoints, 2)
        made = store.read_manifest(newest).files["weights.safetensors"]
        DAMAGES[why](newest)
        async with stage.learner("second") as (_, work):
            steps = await stage.steps(work, 3)
        assert [(r.incarnation, r.step) for r in steps] == [(0, 1), (0, 2), (1, 2)]
        (refused,) = await stage.facts(facts.CHECKPOINT_REFUSED)
        assert why in refused.data["reason"] and refused.data["step"] == 2
        assert newest.with_suffix(".damaged").is_dir()
        assert store.read_manifest(newest).files["weights.safetensors"] == made

    stage.play(main)


def test_with_no_checkpoint_left_the_log_serves_while_it_is_whole(stage):
    async def main():
        await _two_steps(stage)
        shutil.rmtree(stage.folder.checkpoints)
        async with stage.learner("second") as (_, work):
            steps = await stage.steps(work, 4)
        assert [(r.incarnation, r.step) for r in steps] == [(0, 1), (0, 2), (1, 1), (1, 2)]

    stage.play(main)


@pytest.mark.parametrize("left", [[], ["step-000001"]])
def test_what_no_log_can_make_again_is_said(stage, left):
    """Nobody would ever send the groups that are open then."""

    async def main():
        await _two_steps(stage)
        await stage.bus.trim_episodes((await stage.bus.broker.stream_state(stage.bus.names.episodes)).last_seq + 1)
        for path in store.committed(stage.folder.checkpoints):
            if path.name not in left:
                shutil.rmtree(path)
        with pytest.raises(LostCheckpoints, match="has made 2 steps, but") as caught:
            async with stage.learner("second") as (_, work):
                await work
        assert is_users_fault(caught.value)
        assert (left or ["no checkpoint"])[0] in str(caught.value)

    stage.play(main)


def test_the_oldest_that_can_be_read_says_what_the_log_keeps(stage):
    async def main():
        await _two_steps(stage)
        first, second = store.committed(stage.folder.checkpoints)
        (first / "state.json").write_bytes(b"")
        assert store.kept_from(stage.folder.checkpoints) == store.read_extra(second).log_position > 0
        (second / "consumed.bin").unlink()
        assert store.kept_from(stage.folder.checkpoints) == 0

    stage.play(main)


def _with(config, **learner):
    fields = json.loads(config.model_dump_json())
    return RunConfig.model_validate({**fields, "learner": {**fields["learner"], **learner}})


def test_settings_that_are_others_than_before_are_told_once_with_the_step(stage):
    """Else nobody could say later why a curve breaks there."""

    async def main():
        await _two_steps(stage)
        assert not await stage.facts(facts.OTHER_SETTINGS)
        stage.config = _with(stage.config, lr=2e-3, kl_coef=0.1)
        for name in ("second", "third"):
            async with stage.learner(name) as (_, work):
                await stage.steps(work, 2)

                async def taken_over(incarnation={"second": 1, "third": 2}[name]):
                    return incarnation in [r.incarnation for r in await stage.records("incarnation")]

                await stage.until(work, taken_over)
        (told,) = await stage.facts(facts.OTHER_SETTINGS)
        assert told.data == {
            "step": 2,
            "changes": [["learner.kl_coef", "0.0", "0.1"], ["learner.lr", "0.01", "0.002"]],
        }

    stage.play(main)


def test_no_room_for_a_checkpoint_ends_the_learner_with_a_line_and_the_one_before_serves(stage):
    async def main():
        folder = stage.folder.checkpoints
        async with stage.learner("first") as (_, work):
            await stage.send(healthy(0), healthy(1))
            await stage.steps(work, 1)

            async def committed() -> bool:
                return len(store.committed(folder)) == 1

            await stage.until(work, committed)
        (first,) = store.committed(folder)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        too_small = (first / "optimizer.safetensors").stat().st_size - 1  # weights still fit
        resource.setrlimit(resource.RLIMIT_FSIZE, (too_small, before[1]))
        try:
            with pytest.raises(NoRoom) as caught:
                async with stage.learner("second") as (_, work):
                    await stage.send(healthy(2), healthy(3))
                    await asyncio.wait_for(work, 120)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        said = str(caught.value)
        assert is_users_fault(caught.value) and "\n" not in said
        assert str(folder) in said and "MB to write" in said and "kernelmill up" in said
        store.verify(first)
        assert [path.name for path in folder.iterdir()] == [first.name]
        async with stage.learner("third") as (_, work):
            steps = await stage.steps(work, 3)
        assert [(r.incarnation, r.step) for r in steps] == [(0, 1), (1, 2), (2, 2)]

    stage.play(main)
