"""When a supervisor is killed, what it started is gone soon, whatever that is busy with."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

ORPHAN = """
import signal, sys, threading, time
from runners.actor_process import _die_with_parent
signal.signal(signal.SIGTERM, lambda *_: None)
_die_with_parent(its_broker={its_broker})
print("up", flush=True)
while True:
    {busy}
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "KERNELMILL_SUPERVISED": "1"},
                         stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize(("its_broker", "busy", "gone"), [
    (True, "time.sleep(60)", True), (True, "pass", True), (False, "time.sleep(60)", False),
])  # fmt: skip
def test_an_actor_outlives_its_supervisor_only_where_the_broker_does(its_broker, busy, gone):
    program = ORPHAN.format(its_broker=its_broker, busy=busy)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, program], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + (20 if gone else 6)
        while time.monotonic() < deadline and child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.1)
        assert (not child.is_running() or child.status() == psutil.STATUS_ZOMBIE) == gone
    finally:
        if child.is_running():
            os.kill(child.pid, signal.SIGKILL)
