"""`kernelmill` as a person types it, many times over: each call is a process of its own, forked from one that has
imported what commands import. So a call costs its own work and not the seconds of an import.

A call has its own environment, folder, streams, signals and exit status, and nothing that it changes outlives it. That
a fresh Python finds its way through the command line is for tests that start one.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]


def kernelmill(*words, cwd=ROOT, absent=()):
    """As subprocess.run answers; the environment is the caller's. Fails where a process of the call outlives it.
    `absent`: modules that its Python has not."""
    words = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        streams = [f"{folder}/out", f"{folder}/err"]
        order = {"words": words, "cwd": str(cwd), "streams": streams, "environment": dict(os.environ)}
        order["absent"] = list(absent)
        origin = _origin()
        origin.stdin.write(json.dumps(order) + "\n")
        origin.stdin.flush()
        answer = json.loads(origin.stdout.readline())
        out, err = (Path(stream).read_text() for stream in streams)
    assert not answer["left"], f"kernelmill {' '.join(words)}: {answer['left']}\n{out}{err}"
    return subprocess.CompletedProcess(words, answer["code"], out, err)


def refused(done, *said):
    """In one line, with exit code 2."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in said:
        assert part in done.stderr


@functools.cache
def _origin():
    words = [sys.executable, "-m", "tests.unit.runners.typed_origin"]
    one = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(one.stdin.close)  # it ends then
    return one
