"""What the filter of GPU children lets through beyond the compiler's: a Unix socket that leads nowhere."""

import json
import subprocess
import sys

import pytest

from core.evaluation.walls import seccomp

pytestmark = pytest.mark.skipif(not seccomp.available(), reason="no seccomp filters here")

TRIES = {
    "listen on a Unix socket": "s = socket.socket(socket.AF_UNIX); s.bind('\\0kernelmill-test'); s.listen()",
    "two ends": "socket.socketpair()",
    "connect": "s = socket.socket(socket.AF_UNIX); s.connect('\\0kernelmill-test')",
    "datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "datagrams, not blocking": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)",
    "network": "socket.socket(socket.AF_INET)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "memory file": "os.memfd_create('x')",
    "signal": "os.kill(os.getppid(), 0)",
    "start a process": "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
}


def _outcomes(kind: str) -> dict[str, str]:
    code = f"""
import json, os, socket
from core.evaluation.walls import linux
from core.evaluation.walls import seccomp
linux.no_new_privileges()
seccomp.install({kind!r})
found = {{}}
for name, source in {TRIES!r}.items():
    try:
        exec(source)
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def test_a_gpu_child_may_listen_and_nothing_more() -> None:
    allowed = {name for name, outcome in _outcomes("gpu").items() if outcome == "done"}
    assert allowed == {"listen on a Unix socket", "start a process"}


def test_a_compiler_may_not_even_listen() -> None:
    assert {name for name, outcome in _outcomes("compile").items() if outcome == "done"} == {"start a process"}
