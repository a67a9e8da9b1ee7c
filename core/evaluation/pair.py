"""The two processes of one candidate: an executor with the data, which forks a host with the candidate's Python.

Run in a freshly forked child of the zygote. The order is what keeps them apart: the walls are built, the host is forked
and hardened, the executor is hardened, and only then is the job, with its inputs, read.
"""

import contextlib
import os
import socket
import sys
import time
import traceback
from typing import Any

import torch

from core.evaluation import harness, host, link
from core.evaluation.harness import CONFINED
from core.evaluation.interpreter import calls, executor
from core.evaluation.walls import cpu_time, sandbox


def run(walls: sandbox.Walls, limits: sandbox.Limits, slot: int, folder: str, job_fd: int, result_fd: int) -> None:
    """The executor's life, from a child that `sandbox.confine(..., forks=True)` has confined."""
    ours, theirs = socket.socketpair()
    own = os.getpid()
    child = os.fork()
    if child == 0:
        _host(walls, limits, slot, own, theirs, folder)
    theirs.close()
    sandbox.harden_executor(walls, limits, slot)
    host_link = link.Link(ours)
    if host_link.receive() != ["ready"]:
        raise OSError("the host's walls could not be built")
    os.write(result_fd, CONFINED)
    channel = harness.Channel(result_fd)
    job, data = harness.read_job(job_fd)
    torch.default_generator.manual_seed(int.from_bytes(os.urandom(7), "little"))
    torch.set_grad_enabled(False)
    worker = executor.Executor(host_link, os.path.join(folder, "candidate.py"))
    if not calls.Calls(worker, channel, job, data).run():  # the host went without a word
        channel.send(_ending(child, limits.cpu_limit_s))
    ours.close()


def _ending(child: int, cpu_limit_s: int) -> dict[str, Any]:
    """How the host ended; a host that closed its link and lives on ended badly."""
    for _ in range(100):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            out_of_time = cpu_time.ran_out(child, cpu_limit_s)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return {"host_ended": code, "host_out_of_time": out_of_time}
        time.sleep(0.02)
    return {"host_ended": 1}


def _host(
    walls: sandbox.Walls, limits: sandbox.Limits, slot: int, parent: int, end: socket.socket, folder: str
) -> None:
    """Everything that happens in the host's process; never returns."""
    code = 1
    try:
        sandbox.harden_host(walls, limits, slot, parent, [end.fileno()])
        import faulthandler

        faulthandler.enable(2)
        host.run(link.Link(end), folder)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)
