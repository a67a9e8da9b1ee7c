"""Ctrl-C at any moment of `evaluate`: one line, exit code 130, and no process of its own left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from marked_processes import ROOT, marked, started, until


def evaluating(mark):
    return started(mark, "-m", "runners.cli", "evaluate", "--config", "configs/demo.toml", "--tasks", "2")


@pytest.mark.parametrize("moment", ["at once", "worker", "worker and a second", "zygotes"])
@pytest.mark.parametrize("times", [1, 2])
def test_one_line_and_nobody_left(moment, times):
    mark = f"{os.getpid()}-{moment.replace(' ', '-')}-{times}"
    one = evaluating(mark)
    if moment == "at once":  # what Python itself does before main runs is not ours to tell
        assert until(lambda: b"runners.cli" in Path(f"/proc/{one.pid}/cmdline").read_bytes())
        time.sleep(1.0)
    else:
        assert until(lambda: len(marked(mark)) > 1)
        time.sleep({"worker": 0.0, "worker and a second": 1.0, "zygotes": 4.0}[moment])
    for _ in range(times):
        one.send_signal(signal.SIGINT)
        time.sleep(0.05)
    out, err = one.communicate(timeout=60)
    # While Python ends it has no handlers any more: a shell says 130 of a death by SIGINT as well.
    assert one.returncode in (130, *([-signal.SIGINT] if (moment, times) == ("at once", 2) else [])), err
    assert out == ""
    # On a busy machine the start takes so long that it is told.
    told = [line for line in err.splitlines() if "Warning" not in line and "evaluate: starting the engine" not in line]
    assert len(told) == 1 and told[0].startswith("kernelmill evaluate: interrupted"), err
    assert until(lambda: not marked(mark), 20.0), marked(mark)


def test_one_in_the_middle_of_an_import_ends_with_130_too(tmp_path):
    """Python remembers one that ended an `exec` of text, and would end by the signal, whoever caught it."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("exec('raise KeyboardInterrupt')")
    done = subprocess.run(
        [sys.executable, "-m", "runners.cli", "up", "configs/demo.toml", "--dry-run"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kernelmill up: interrupted\n")
