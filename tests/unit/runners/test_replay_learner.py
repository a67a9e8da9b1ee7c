"""`kernelmill replay RUN --learner` on a run that a real learner made over a real broker: two lives of it, a rollback,
other settings in the second life, a group and an episode that were rejected. In this process: it has imported all."""

import hashlib
import json
import shutil
import subprocess

import pytest
from msgspec.structs import replace

from actors.recorder import Recorder
from bus.messages import Ended
from core.checkpoints import store
from core.clock import SystemClock
from core.record import reading
from core.record.record import Record
from runners import cli
from tests.unit.actors.learner_stage import GROUP, LearnerStage, fallen, healthy
from tests.unit.runners.typed import refused

STEPS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The run's folder. Step 1 is of the first life; step 2 of it was taken back, and made again with another lr."""
    groups = [healthy(n) for n in range(2 * STEPS)]
    groups[1][2] = fallen(1, 2)
    lost = [fallen(2 * STEPS, index) for index in range(GROUP)]
    folder = tmp_path_factory.mktemp("replayed")
    with LearnerStage(folder, sampler={"max_staleness": 9}, recorder={"wandb": "disabled"}) as stage:

        async def main():
            async with stage.learner("first") as (_, work):
                await stage.send(*groups[:4])
                await stage.steps(work, 2)
            shutil.rmtree(store.step_folder(stage.folder.checkpoints, 2))
            learner = stage.config.learner.model_copy(update={"lr": 3e-3, "betas": (0.9, 0.95)})
            stage.config = stage.config.model_copy(update={"learner": learner})
            async with stage.learner("second") as (_, work):
                await stage.send(lost, *groups[4:])
                await stage.steps(work, 2 + STEPS - 1)
            recorder = Recorder(stage.config, await stage._connect("r"), "recorder", stage.folder, SystemClock())
            recorder.stopping.set()  # it leaves when nothing is left to record
            await recorder.run()
            await recorder.bus.close()

        stage.play(main)
        root, config = stage.folder.root, stage.config
    at_home = config.run.model_copy(update={"folder": str(root.parent)})
    (root / "config.json").write_text(config.model_copy(update={"run": at_home}).model_dump_json())
    steps = reading.surviving_steps(reading.steps(root))
    assert [(row.incarnation, row.step) for row in steps] == [(0, 1), (1, 2), (1, 3), (1, 4)]
    return root


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def learner(capfd):
    """`kernelmill replay RUN --learner ...`, as subprocess.run answers."""

    def call(run, *words):
        capfd.readouterr()
        code = cli.main([str(word) for word in ("replay", run, "--learner", *words)])
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return call


@pytest.fixture
def replayed(learner):
    def call(run, *words, code=0):
        done = learner(run, "--json", *words)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout), done.stderr

    return call


def rewrite(run, change):
    """The archive anew, each episode as `change` makes it; None leaves it out."""
    rows = list(reading.episodes(run))
    for name in ("episodes.msgpack", "position.json"):
        (run / "record" / name).unlink()
    with Record(run) as record:
        for row in rows:
            if (episode := change(row.episode)) is not None:
                record.append_episodes([Ended(run_id="run", episode=episode, admission=row.admission, size=row.size)])


def test_every_step_is_the_same_to_the_last_bit_and_the_run_is_not_touched(made, replayed, tmp_path):
    before = contents(made)
    told, said = replayed(made, "--out", tmp_path / "out")
    assert told["same"] and [step["step"] for step in told["steps"]] == [1, 2, 3, 4]
    assert all(step["weights"]["same"] and step["outcomes_same"] and not step["others"] for step in told["steps"])
    assert [step["checkpoint_same"] for step in told["steps"]] == [True] * STEPS, "weights and optimizer, all of them"
    assert told["start"] == {"step": 0, "of": "the policy that the run started from", "same": True}
    assert "4 steps as in the run, to the last bit: 4 fingerprints of weights, 4 checkpoints" in said
    lrs = [step["figures"]["lr"] for step in told["steps"]]
    assert lrs[0] == {"now": 1e-2, "was": 1e-2} and lrs[1] == {"now": 3e-3, "was": 3e-3}, "of their lives"
    assert contents(made) == before
    assert json.loads((tmp_path / "out" / "learner.json").read_text()) == told
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"learner.json", ".lock"}


def test_from_a_checkpoint_with_what_stands_before_on_the_way(copy, replayed):
    shutil.rmtree(store.step_folder(copy / "checkpoints", 2))
    told, said = replayed(copy, "--from", 3, "--to", 3)
    assert said.startswith("step 3, from checkpoint 1 (step 2 on the way)")
    assert told["same"] and [step["step"] for step in told["steps"]] == [2, 3]
    assert [step["checkpoint_same"] for step in told["steps"]] == [None, True]
    assert (copy / "replay" / "learner.json").exists()


def test_other_settings_count_from_their_step_on_and_figures_stand_beside_the_run_s(made, replayed, tmp_path):
    out = tmp_path / "out"
    told, said = replayed(made, "--out", out, "--from", 3, "learner.lr=2e-2", "reward.compiled=0.0")
    two, three = told["steps"]
    assert two["step"] == 3 and three["step"] == 4, "from the checkpoint before it"
    assert two["figures"]["lr"] == {"now": 2e-2, "was": 3e-3}
    assert two["weights"]["same"] is False and three["figures"]["kl_behaviour"]["now"] > 0
    assert two["figures"]["reward/mean"]["now"] == 0.0 < two["figures"]["reward/mean"]["was"], "no verdict is a pass"
    assert "loss" in three["others"] and "mean of these steps, in the run -> now" in said
    assert said.startswith("steps 3 to 4 with learner.lr=2e-2 reward.compiled=0.0, from checkpoint 2")
    plain, _ = replayed(made, "--out", out, "--from", 3)
    assert plain["same"] and len(list(out.glob("learner*.json"))) == 2, "neither is written over"


def test_a_record_that_is_another_than_what_was_trained_on_is_found(copy, replayed):
    group = reading.surviving_steps(reading.steps(copy))[2].groups[0].group_id

    def paid_more(episode):
        if (episode.group_id, episode.index) != (group, 0):
            return episode
        return replace(episode, turns=(replace(episode.turns[0], score=5.0),))

    rewrite(copy, paid_more)
    told, said = replayed(copy, code=1)
    for known in ("same", "checkpoint_same"):
        assert [step[known] for step in told["steps"]] == [True, True, False, False]
    assert "2 of 4 steps are not the run's, to the last bit; the first is step 3: other weights" in said


def test_what_is_missing_is_one_line_with_the_step_from_which_on_it_is_possible(copy, learner, replayed):
    refused(learner(copy, "--from", 5), "steps 5 to 4", "wanted some of 1 to 4")
    refused(learner(copy, "learner.lrr=1"), "did you mean learner.lr")
    refused(learner(copy, "--last", 3), "--last goes with --kernels or --rewards")
    refused(learner(copy, "--out", copy / "record"), "is a place of the run's own files")
    refused(learner(copy, "model.path=/nowhere"), "there is no such folder", "by model.path=FOLDER")
    critic = ("learner.advantage=gae", "learner.baseline=none")
    done = learner(copy, "--from", 3, *critic)
    assert done.returncode == 2 and "step 3 can't be trained with these settings" in done.stderr

    gone = {group.group_id for group in reading.surviving_steps(reading.steps(copy))[1].groups}
    rewrite(copy, lambda episode: None if episode.group_id in gone else episode)
    lacks = "step 2 can't be made again, the record lacks 8 of its 8 episodes"
    refused(learner(copy, "--from", 2), lacks, "possible from step 3 on: --from 3")
    told, _ = replayed(copy)
    assert told["same"] and [step["step"] for step in told["steps"]] == [3, 4], "the first that is possible"
    (store.step_folder(copy / "checkpoints", 3) / "optimizer.safetensors").unlink()
    told, said = replayed(copy, "--from", 4)
    assert "optimizer.safetensors is missing: passed over" in said and told["steps"][0]["step"] == 3
    shutil.rmtree(copy / "checkpoints")
    refused(learner(copy), lacks, "there are: none")
    (copy / "record" / "episodes.msgpack").unlink()
    refused(learner(copy), "record/episodes.msgpack is absent")
    (copy / "record" / "steps.jsonl").unlink()
    refused(learner(copy), "has made no step yet")
