"""Ctrl-C at the stand-alone gateway says at once what it waits for; a second one ends it now."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[3]
TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""
ENDLESS = "import triton\n@triton.jit\ndef k(x):\n    pass\nclass ModelNew:\n    pass\nwhile True:\n    pass\n"


def gateway():
    words = ["gateway", "--port", "0", "--workers", "1", "--wall", "60"]
    return subprocess.Popen(
        [sys.executable, "-m", "runners.cli", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(url):
    body = {"backend": "triton", "original_model_src": TASK, "custom_model_src": ENDLESS}
    request = urllib.request.Request(f"{url}/eval", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with contextlib.suppress(OSError):  # it is ended
        urllib.request.urlopen(request, timeout=60).read()


def test_what_is_waited_for_is_said_and_a_second_one_ends_it():
    one = gateway()
    line = one.stdout.readline()
    assert line.startswith("listening on "), one.communicate()
    url = line.split()[2]
    threading.Thread(target=ask, args=(url,), daemon=True).start()
    deadline = time.monotonic() + 30
    while b"kernelmill_gateway_requests 1" not in urllib.request.urlopen(f"{url}/metrics", timeout=10).read():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    one.send_signal(signal.SIGINT)
    said = one.stderr.readline()
    assert "kernelmill gateway: stopping: waiting at most 20 s for 1 request in hand" in said
    assert "Ctrl-C again ends it now" in said and one.poll() is None
    one.send_signal(signal.SIGINT)
    assert one.wait(10) == 130
    assert one.stderr.read() == ""


def test_one_that_has_nothing_in_hand_or_is_still_starting_stops_in_order():
    for waits in (True, False):
        one = gateway()
        if waits:
            one.stdout.readline()
        else:
            time.sleep(2.0)
        one.send_signal(signal.SIGINT)
        _, err = one.communicate(timeout=60)
        if one.returncode == 130:  # before there was anything to stop
            assert err == "kernelmill gateway: interrupted\n"
            continue
        assert one.returncode == 0, err
        assert (
            err.splitlines()[0].startswith("kernelmill gateway: stopping: nothing in hand, then") and "Trace" not in err
        )
