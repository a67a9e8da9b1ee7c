"""`up` on a run that began with other settings says so, in its first line and before anything is started."""

import signal
import subprocess
import sys
from itertools import takewhile

import pytest

from configs.load import load
from runners.local import LocalRun
from tests.unit.runners.test_bad_input import recipe
from tests.unit.runners.typed import ROOT, kernelmill, refused


@pytest.fixture
def begun(tmp_path):
    """The recipe of a run that began."""
    path = recipe(tmp_path)
    run = LocalRun(load(path, []), on_line=lambda *_: None)
    run.prepare()
    (run.folder.record / "facts.jsonl").touch()
    return path


def before_the_start(path, *overrides):
    """What is said until actors are started."""
    words = [sys.executable, "-m", "runners.cli", "up", path, *overrides]
    supervisor = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        return list(takewhile(lambda line: not line.startswith("starting"), supervisor.stdout))
    finally:
        supervisor.send_signal(signal.SIGINT)
        supervisor.communicate(timeout=120)


def test_it_says_what_is_another_now(begun):
    told = "goes on with other settings: learner.lr 0.0002 -> 0.1, local.restart_after_s 0.5 -> 2.0\n"
    assert before_the_start(begun, "learner.lr=0.1", "local.restart_after_s=2") == [told]
    assert before_the_start(begun, "learner.lr=0.1", "local.restart_after_s=2") == []


def test_what_defines_the_run_is_still_refused(begun):
    refused(
        kernelmill("up", begun, "learner.lr=0.1", "sampler.group_size=3"), "sampler.group_size is 8 there and 3 here"
    )
