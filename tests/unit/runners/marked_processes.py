"""Commands of the project in processes of their own, and all that those start, known by a word in their environment."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
MARK = "KERNELMILL_TEST_MARK"


def started(mark, *words):
    """Python on these words, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=ROOT, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def marked(mark):
    """pids of all that were started with this word in their environment, the dead that nobody waited for apart."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment, state = (folder / "environ").read_bytes(), (folder / "stat").read_text().rpartition(")")[2]
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and state.split()[0] != "Z":
            found.append(int(folder.name))
    return found


def until(happens, seconds=120.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if happens():
            return True
        time.sleep(0.02)
    return False
