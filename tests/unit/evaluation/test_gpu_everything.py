"""Jobs for cards: who begins when, and that nothing of what they said is lost, however they end."""

import contextlib
import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.gpu import everything, jobs
from tests.gpu.jobs import Job, Results, Running

JOBS = {"a": Job(1, 100, ("a",)), "pair": Job(2, 50, ("p",)), "short": Job(1, 30, ("s",)), "long": Job(1, 90, ("l",))}
POLITE = """
import json, signal, sys, time
def told(*_):
    print(json.dumps({"cut": True}), flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, told)
print("no json\\n" + json.dumps({"part": 1}), flush=True)
print("a word", file=sys.stderr, flush=True)
while True:
    time.sleep(1)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print(child.pid, flush=True)
while True:
    time.sleep(1)
"""
QUICK = """print('{"a": 1}')"""


@pytest.mark.parametrize(
    ("waiting", "free", "frees_s", "chosen"),
    [
        (["a", "pair"], 2, 0.0, "a"),
        (["pair", "a"], 2, 0.0, "pair"),
        (["pair", "short"], 1, 10.0, None),  # who waits for both cards is not kept waiting
        (["pair", "long", "short"], 1, 40.0, "short"),
        (["pair", "long"], 1, 95.0, "long"),
        (["a"], 0, 40.0, None),
        ([], 2, 0.0, None),
    ],
)
def test_who_begins_next(monkeypatch, waiting, free, frees_s, chosen):
    monkeypatch.setattr(everything, "JOBS", JOBS)
    assert everything.next_job(waiting, free, frees_s) == chosen


def test_why_a_job_is_left_out():
    judge = Job(1, 100, (), judges=True)
    assert everything.left_out(JOBS["pair"], 1, 1e9, "") == "cards"
    assert everything.left_out(JOBS["a"], 1, 100.0, "") == "time"
    assert "no compiler" in everything.left_out(judge, 1, 1e9, "no compiler")
    assert not everything.left_out(JOBS["a"], 1, 1e9, "no compiler") and not everything.left_out(judge, 1, 1e9, "")


def test_cards_and_limits_of_a_job():
    assert jobs.visible((0, 1), "") == "0,1" and jobs.visible((1,), "GPU-a, GPU-b") == "GPU-b"
    assert jobs.within(("m", "--limit-s", "230", "-x"), 1000.0) == ("m", "--limit-s", "230", "-x")
    assert jobs.within(("m", "--limit-s", "230"), 124.0) == ("m", "--limit-s", "100")
    assert jobs.within(("m",), 5.0) == ("m",)


@pytest.mark.parametrize("name", everything.JOBS)
def test_every_job_is_a_module_that_is_there(name):
    module = everything.JOBS[name].words[0]
    assert module == "pytest" or (jobs.ROOT / f"{module.replace('.', '/')}.py").is_file()
    assert all((jobs.ROOT / word).is_file() for word in everything.JOBS[name].words if word.endswith(".py"))


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Begins a job of this source; it has said its first words."""
    started = []
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def begin(name, source):
        (tmp_path / f"job_{name}.py").write_text(source)
        started.append(Running(name, Job(1, 1000, (f"job_{name}",)), (0,), tmp_path, 1e6))
        while not started[-1].out.read_bytes() and started[-1].process.poll() is None:
            time.sleep(0.02)
        return started[-1]

    yield begin
    for one in started:
        one.end()


def test_who_is_asked_to_end_tells_what_it_has(begun, tmp_path):
    one, results = begun("polite", POLITE), Results(tmp_path / "out", {"cards": ["x"]})
    assert not one.over()
    while "a word" not in jobs.tail(one.err, 100):
        time.sleep(0.02)
    results.write([one])  # while it runs: what was said so far is there
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["cards"] == ["x"] and found["jobs"]["polite"]["state"] == "runs"
    assert found["jobs"]["polite"]["said"] == ["no json", {"part": 1}]
    assert (tmp_path / "out" / "err.txt").read_text() == "===== polite\na word\n\n"
    one.until = 0.0
    assert not one.over() or one.process.poll() is not None
    one.process.wait()
    assert one.over()
    results.tell("polite", one.end())
    results.write()
    found = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]["polite"]
    assert (found["state"], found["code"], found["said"][-1]) == ("cut off", 3, {"cut": True})
    assert sorted(os.listdir(tmp_path / "out")) == ["err.txt", "results.json"]


def test_who_does_not_end_is_ended_with_all_that_it_began(begun):
    one = begun("stubborn", STUBBORN)
    child = psutil.Process(one.told()["said"][0])
    one.until = 0.0
    assert not one.over()
    one._asked -= jobs.GRACE_S
    assert one.over() and one.end()["code"] == -9
    with contextlib.suppress(psutil.NoSuchProcess):
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)


def test_all_of_it(tmp_path, monkeypatch):
    (tmp_path / "job_quick.py").write_text(QUICK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    quick = Job(1, 1, ("job_quick",))
    known = {"one": quick, "two": quick, "three": Job(3, 1, ("job_quick",)), "pair": Job(2, 1, ("job_quick",))}
    monkeypatch.setattr(everything, "JOBS", known)
    results = Results(tmp_path / "out", {})
    everything.play(list(known), 2, time.monotonic() + 1e6, results, tmp_path, "", "")
    found = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]
    assert found.pop("three") == {"state": "left out", "why": "cards"}
    assert {name: (one["state"], one["code"], one["said"]) for name, one in found.items()} == dict.fromkeys(
        ("one", "two", "pair"), ("over", 0, [{"a": 1}])
    )


def test_what_fails_is_told_before_the_end(tmp_path):
    """Whoever is cut off after a failure knows why it was one."""
    (tmp_path / "test_x.py").write_text(
        "import time\ndef test_a():\n    assert 41 == 42\ndef test_b():\n    time.sleep(60)\n"
    )
    command = [
        sys.executable,
        "-u",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.gpu.instant",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(jobs.ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        told = ""
        while "assert 41 == 42" not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
