"""`kernelmill replay RUN --kernels` and `--rewards`: a doctored record before a real judge, interrupted and gone on
with."""

import json
import signal
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from bus.messages import Ended
from core.columns import pack
from core.episodes.episode import Episode, Turn
from core.evaluation.reward import score
from core.evaluation.verdict import Verdict
from core.identity import digest
from core.record.record import Record
from tests.unit.runners.scaled_kernels import KERNEL, TASK
from tests.unit.runners.typed import ROOT, kernelmill, refused

PASS = Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speedup=1.5, speedup_low=1.5)
WRONG = Verdict(candidate_key="k", kind="fail", compiled=True, category="wrong_value", stage="correctness")
INFRA = Verdict(candidate_key="k", kind="infra", category="infra")


def kernel(factor):
    return KERNEL.format(factor=factor)


@pytest.fixture
def run(tmp_path):
    """Of two tasks. Its judge paid for a kernel that is wrong (twice), and refused one that is right."""
    level = tmp_path / "tasks" / "level1"
    level.mkdir(parents=True)
    for number, factor in ((1, 2.0), (2, 3.0)):
        (level / f"{number}_task.py").write_text(TASK.format(factor=factor))
    first, second = (
        line.split()[0] for line in kernelmill("tasks", "list", tmp_path / "tasks").stdout.splitlines()[1:3]
    )
    wrote = [
        (first, 2.0, PASS),  # right, and paid
        (first, 2.5, PASS),  # wrong, and paid
        (first, 2.5, PASS),
        (first, 9.0, WRONG),
        (second, 3.0, WRONG),  # right, and refused
        (second, 4.0, WRONG),
        (second, 3.5, INFRA),
        (second, 5.0, replace(WRONG, category="race_condition")),
    ]
    folder = tmp_path / "run"
    with Record(folder) as record:
        for number, (task_id, factor, verdict) in enumerate(wrote):
            turn = Turn(
                index=0, prompt_ids=b"", completion_ids=pack("ids", [1]), logprobs=pack("logprobs", [0.0]),
                versions=pack("versions", [3]), candidate=kernel(factor), verdict=verdict, score=score(verdict),
            )  # fmt: skip
            ends = "infra" if verdict is INFRA else "max_turns"
            episode = Episode(group_id="g", index=number, task_id=task_id, turns=(turn,), end=ends)
            record.append_episodes([Ended(run_id="r", episode=episode, admission=0, size=8)])
        record.append_metrics([{"at": 1.0, "actor": "a"}])
    config = {
        "run": {"name": "run", "folder": str(tmp_path)},
        "tasks": {
            "train": [{"kind": "folder", "path": str(tmp_path / "tasks"), "split": "all"}],
            "heldout": [{"kind": "composed", "count": 1, "seed": 1, "split": "heldout"}],
        },
        "model": {"path": str(tmp_path)},
        "judge": {"workers": 1, "draws": 2},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def rows_of(run):
    return [json.loads(line) for line in (run / "replay" / "kernels.jsonl").read_text().splitlines()]


def test_a_wrong_verdict_is_found_and_an_interrupted_call_is_gone_on_with(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    words = [sys.executable, "-m", "runners.cli", "replay", str(run), "--kernels"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as begun:
        deadline = time.monotonic() + 120
        while not (run / "replay" / "kernels.jsonl").exists() or not rows_of(run):
            assert begun.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        begun.send_signal(signal.SIGINT)
        said = begun.stderr.read()
    assert begun.returncode == 130 and "interrupted: stopping the judge's workers" in said
    stood = rows_of(run)
    assert 1 <= len(stood) < 7
    first = json.dumps(stood[0] | {"judge": "the judge before it was mended"})
    lines = [first, *map(json.dumps, stood[1:]), '{"task_id": "of a writer that was killed']
    (run / "replay" / "kernels.jsonl").write_text("\n".join(lines))

    done = kernelmill("replay", run, "--kernels", "--json")
    assert done.returncode == 1, done.stderr
    stand = f"{len(stood) - 1} of 7 kernels stand from an earlier call"
    assert stand in done.stderr or (len(stood) == 1 and "stand" not in done.stderr)
    told, rows = json.loads(done.stdout), rows_of(run)
    assert len(rows) == 7 and len({row["judge"] for row in rows}) == 1
    assert told["paid_wrongly"] == {"kernels": 1, "turns": 2}
    assert told["refused_wrongly"] == {"kernels": 1, "turns": 1}
    assert told["changes"] == {"same": 3, "verdict": 2, "reason": 1, "first": 1}
    found = {one["was"]: one for one in told["changed"] if one["change"] == "verdict"}
    paid, refused_one = found["pass"], found["fail wrong_value"]
    assert (paid["was"], paid["now"], paid["kernel"]) == ("pass", "fail wrong_value", digest(kernel(2.5)))
    assert (paid["score_was"], paid["score_now"]) == (0.8, 0.1) and paid["times"] == 2
    assert (refused_one["now"], refused_one["kernel"]) == ("pass", digest(kernel(3.0)))
    was, now = told["figures"]["was"]["reward/mean"], told["figures"]["now"]["reward/mean"]
    right = {row["kernel"]: row["score_now"] for row in rows if row["now"]["kind"] == "pass"}
    assert was == pytest.approx((3 * 0.8 + 4 * 0.1) / 7)
    assert now == pytest.approx((sum(right.values()) + 5 * 0.1) / 7), "of the seven that had a score"
    assert {row["kernel"]: row["source"] for row in rows if row["source"]} == {
        digest(kernel(factor)): kernel(factor) for factor in (2.5, 3.0, 5.0)
    }, "those that changed"
    assert {path: path.read_bytes() for path in before} == before

    again = kernelmill("replay", run, "--kernels", "--only", "pass")
    assert again.returncode == 1, again.stderr
    assert "2 of 2 kernels stand from an earlier call" in again.stdout, "no judge was started"
    assert "* pass -> fail wrong_value" in " ".join(again.stdout.split())
    assert len(rows_of(run)) == 7


def test_another_reward_without_judging(run):
    done = kernelmill("replay", run, "--rewards", "reward.shape=kevin", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["other_scores"] == 7 and told["turns"] == 8
    assert told["figures"]["now"]["reward/mean"] == pytest.approx(3 * 1.8 / 7)
    plain = kernelmill("replay", run, "--rewards")
    assert plain.returncode == 0 and plain.stdout.startswith("0 of 8 turns have another score")
    assert len(list((run / "replay").glob("rewards*.json"))) == 2, "neither is written over"


def test_what_can_not_be_used_is_one_line(run, tmp_path):
    refused(kernelmill("replay", run), "one of the arguments --learner --kernels --rewards is required")
    refused(kernelmill("replay", run, "--kernels", "--from", 3), "--from goes with --learner, not --kernels")
    refused(kernelmill("replay", run, "--rewards", "--only", "pass"), "--only goes with --kernels, not --rewards")
    refused(kernelmill("replay", run, "--kernels", "--sample", 0), "--sample 0: wanted at least 1")
    refused(kernelmill("replay", run, "--kernels", "--task", "none/*"), "no kernel of --task none/* was judged")
    refused(kernelmill("replay", run, "--rewards", "reward.shape=kelvin"), "reward.shape", "kevin")
    refused(kernelmill("replay", run, "--kernels", "judge.device_class=h100", "judge.speed=measured"), "has no GPU")
    refused(kernelmill("replay", run, "--kernels", "--out", run), "is a place of the run's own files")
    refused(kernelmill("replay", run, "--learner"), "has made no step yet")
    (run / "replay").mkdir()
    (run / "replay" / "kernels.jsonl").write_text("nothing\n")
    refused(kernelmill("replay", run, "--kernels"), "kernels.jsonl can't be read", "choose a new folder by --out")
    (run / "record" / "episodes.msgpack").unlink()
    refused(kernelmill("replay", run, "--kernels"), "keeps no archive of its episodes")
    refused(kernelmill("replay", tmp_path / "none", "--kernels"), "there is no such run folder")
