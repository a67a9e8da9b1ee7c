"""What the stand-alone gateway writes where it was started: one line for what is worth one, whatever comes in."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SENT = (
    b"POST /eval HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000 + b"\r\n\r\n",
    b"hello there\r\n\r\n",
)
NO_KERNEL = "import torch\nclass ModelNew(torch.nn.Module):\n    pass\n"


def ask(port, reference, candidate):
    body = {"backend": "triton", "original_model_src": reference, "custom_model_src": candidate}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/eval", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_a_terminal_has_a_line_and_no_trace():
    one = subprocess.Popen(
        [sys.executable, "-m", "runners.cli", "gateway", "--port", "0", "--workers", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = one.stdout.readline()
        assert line.startswith("listening on "), one.communicate()
        port = int(line.split()[2].rpartition(":")[2])
        for sent in SENT:
            with socket.create_connection(("127.0.0.1", port), 60) as client:
                client.sendall(sent)
                assert b'{"detail":"no HTTP/1.1 request: ' in client.makefile("rb").read()
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(
                b"POST /eval HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
        for reference in ("class Model(:", "import torch\n1 / 0\n"):
            status, told = ask(port, reference, NO_KERNEL)
            assert status == 400 and told["metadata"]["category"] == "unknown", told
            assert told["detail"].startswith("original_model_src does not run"), told
    finally:
        one.send_signal(signal.SIGTERM)
        out, err = one.communicate(timeout=60)
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("kernelmill gateway: stopping")]
    assert lines and all("a request can't be read" in line for line in lines), err
