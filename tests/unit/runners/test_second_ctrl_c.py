"""Ctrl-C in `up` and `demo`: the first one says that it stops and that another ends it; the second leaves nobody."""

import os
import signal
import subprocess
import sys

import pytest
from marked_processes import MARK, ROOT, marked, started, until


def test_the_second_ends_everything_of_up_at_once(tmp_path):
    mark, said = f"{os.getpid()}-up", "stopping, Ctrl-C again ends it at once"
    one = started(mark, "-m", "runners.cli", "up", "configs/demo.toml", f"run.folder={tmp_path}", "bus.port=0")
    assert until(lambda: len(marked(mark)) >= 4)
    one.send_signal(signal.SIGINT)
    lines = []
    for line in one.stdout:
        lines.append(line)
        if said in line:
            break
    one.send_signal(signal.SIGINT)
    out, err = one.communicate(timeout=30)
    whole = "".join(lines) + out + err
    assert said in whole and err == "kernelmill up: ended at once\n", whole
    assert one.returncode == 130 and "Traceback" not in whole, whole
    assert until(lambda: not marked(mark), 20.0), marked(mark)


EVALUATION = """#!{python} -S
import signal, time
def stop(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("stopping; Ctrl-C again ends it", file=__import__("sys").stderr, flush=True)
signal.signal(signal.SIGINT, stop)
print("ready", file=__import__("sys").stderr, flush=True)
while True:
    time.sleep(1)
"""
DEMO = """
import sys
from pathlib import Path
from core.run_folder import RunFolder
from runners import demo
sys.executable = sys.argv[1]
demo._evaluate(RunFolder("run"), "model", Path("out"))
"""


@pytest.fixture
def evaluation(tmp_path):
    child = tmp_path / "evaluation"
    child.write_text(EVALUATION.format(python=sys.executable))
    child.chmod(0o755)
    return child


def test_the_second_ends_the_demo_while_it_evaluates(evaluation):
    """Its child has not this terminal's Ctrl-C: the first is handed on once, and the child says what it stops."""
    mark = f"{os.getpid()}-demo"
    one = started(mark, "-c", DEMO, evaluation)
    assert one.stderr.readline() == "ready\n"
    one.send_signal(signal.SIGINT)
    assert one.stderr.readline() == "stopping; Ctrl-C again ends it\n" and one.poll() is None
    one.send_signal(signal.SIGINT)
    out, err = one.communicate(timeout=30)
    assert (one.returncode, out, err) == (130, "", "kernelmill demo: ended at once\n")
    assert until(lambda: not marked(mark), 20.0), marked(mark)


def test_a_demo_that_is_killed_leaves_no_evaluation(evaluation):
    mark = f"{os.getpid()}-killed"
    one = started(mark, "-c", DEMO, evaluation)
    assert one.stderr.readline() == "ready\n"
    one.kill()
    one.communicate(timeout=30)
    assert until(lambda: not marked(mark), 20.0), marked(mark)


FOREST = """
import os, signal, subprocess, sys, time
from runners import interrupts
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in range(int(sys.argv[1])):
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
    while True:  # and goes on making more
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        time.sleep(0.01)
child = subprocess.Popen([sys.executable, __file__, "3"], start_new_session=True)
with interrupts.stop_or_end("forest", lambda: interrupts.say("stopping")):
    print("ready", flush=True)
    child.wait()
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_for_nothing_and_goes_on_starting_others_ends_too(tmp_path, second):
    script = tmp_path / "forest.py"
    script.write_text(FOREST)
    mark = f"{os.getpid()}-forest-{int(second)}"
    one = subprocess.Popen(
        [sys.executable, script], env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert one.stdout.readline() == "ready\n"
    assert until(lambda: len(marked(mark)) > 5)
    one.send_signal(signal.SIGINT)
    assert one.stderr.readline() == "stopping\n" and one.poll() is None
    one.send_signal(second)
    out, err = one.communicate(timeout=30)
    assert (one.returncode, out, err) == (130, "", "kernelmill forest: ended at once\n")
    assert until(lambda: not marked(mark), 20.0), marked(mark)
