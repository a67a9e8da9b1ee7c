"""`kernelmill best`: kernels of a run judged again by a real judge, and what it says of a run that can't be used."""

import json

import pytest
from scaled_kernels import KERNEL, TASK
from typed import kernelmill, refused

from bus.messages import Ended
from core.columns import pack
from core.episodes.episode import Episode, Turn
from core.evaluation.verdict import Verdict
from core.record.record import Record


def wrote(index, task_id, factor, speedup):
    judged = Verdict(candidate_key="k", kind="pass", correct=True, speedup=speedup, speedup_low=speedup)
    turn = Turn(
        index=0,
        prompt_ids=b"",
        completion_ids=pack("ids", [1]),
        logprobs=pack("logprobs", [0.0]),
        versions=pack("versions", [3]),
        candidate=KERNEL.format(factor=factor),
        verdict=judged,
        score=1.0,
    )
    return Episode(group_id="g", index=index, task_id=task_id, turns=(turn,), end="success")


@pytest.fixture
def made(tmp_path):
    """A run with two tasks, whose verdicts are too good to be true."""
    level = tmp_path / "tasks" / "level1"
    level.mkdir(parents=True)
    for number, factor in ((1, 2.0), (2, 3.0)):
        (level / f"{number}_task.py").write_text(TASK.format(factor=factor))
    source = [{"kind": "folder", "path": str(tmp_path / "tasks"), "split": "all"}]
    ids = [line.split()[0] for line in kernelmill("tasks", "list", tmp_path / "tasks").stdout.splitlines()[1:3]]
    run = tmp_path / "run"
    with Record(run) as record:
        episodes = [wrote(0, ids[0], 2.5, 90.0), wrote(1, ids[0], 2.0, 1.5), wrote(2, ids[1], 9.0, 80.0)]
        record.append_episodes([Ended(run_id="r", episode=one, admission=0, size=8) for one in episodes])
    heldout = [{"kind": "composed", "count": 1, "seed": 1, "split": "heldout"}]
    config = {
        "run": {"name": "run", "folder": str(tmp_path)},
        "tasks": {"train": source, "heldout": heldout},
        "model": {"path": str(tmp_path)},
        "judge": {"workers": 1, "draws": 2},
    }
    (run / "config.json").write_text(json.dumps(config))
    return run, ids


def test_the_fastest_that_passes_again_is_kept(made, tmp_path):
    run, (first, second) = made
    done = kernelmill("best", run)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    kept, failed = sorted(lines[:2])
    assert kept.startswith(f"{first}  ") and "x modelled" in kept and "version 3, turn 1, written once" in kept
    assert failed.startswith(f"{second}  failed: fail wrong_value: ")
    assert lines[2] == f"1 of 2 tasks have a kernel in {run / 'best'}; 1 did not pass again"
    folder = run / "best" / first.replace("/", "__")
    assert (folder / "kernel.py").read_text() == KERNEL.format(factor=2.0)
    assert (folder / "reference.py").read_text() == TASK.format(factor=2.0)
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["kind"] == "pass" and verdict["speedup"] != 1.5
    before = (folder / "verdict.json").stat().st_mtime_ns
    again = kernelmill("best", run, "--task", first, "--again", 1, "--json", "judge.workers=2")
    assert again.returncode == 0 and (folder / "verdict.json").stat().st_mtime_ns == before, "it stood"
    assert "1 of 1 task has a kernel in" in again.stderr
    assert [row["task_id"] for row in json.loads(again.stdout)["rows"]] == sorted((first, second))
    assert not (run / "best" / second.replace("/", "__")).exists()


def test_what_can_not_be_used_is_one_line(made, tmp_path):
    run, (first, _) = made
    refused(kernelmill("best", tmp_path / "none"), "there is no such run folder")
    refused(kernelmill("best", run, "--again", 0), "--again 0: wanted at least 1")
    refused(kernelmill("best", run, "--task", "starter/*"), "--task starter/*: no kernel of such a task", first)
    refused(kernelmill("best", run, "judge.device_class=h100", "judge.speed=measured"), "no GPU", "device_class=cpu")
    refused(kernelmill("best", run, "--out", tmp_path / "tasks"), "holds no best.json: choose a new folder by --out")
    (tmp_path / "tasks" / "level1" / "1_task.py").rename(tmp_path / "tasks" / "level1" / "1_renamed.py")
    (tmp_path / "tasks" / "level1" / "2_task.py").rename(tmp_path / "tasks" / "level1" / "2_renamed.py")
    refused(kernelmill("best", run), "2 of 2 tasks with kernels are no more in the run's sources")
    (run / "config.json").unlink()
    refused(kernelmill("best", run), "config.json")


def test_a_run_without_a_right_kernel_has_no_best(tmp_path, made):
    run, _ = made
    (run / "record" / "episodes.msgpack").unlink()
    done = kernelmill("best", run)
    assert done.returncode == 1 and "no kernel of" in done.stderr and not (run / "best").exists()
