"""The zygote: a process with torch and triton imported that forks one confined child per candidate.

    trusted worker --(socket: spawn + 3 descriptors)--> zygote --fork--> child --(result pipe)--> trusted worker

Invariants: it runs no torch operation before a fork (a child would hang in the thread pool's locks); it never reads the
job, so its memory, which every child inherits, holds nothing secret; its environment is made from nothing; it has one
child at a time and reports a child's end only when the child's whole process tree is gone.

Forked by `core.evaluation.nursery`, which has imported torch, as `kind` interpret (Triton is imported as its
interpreter) or compile; started by `core.evaluation.spawn` itself as gpu (no CUDA context before a fork; the job is a
socket).
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

import msgspec

from core.evaluation import import_path
from core.evaluation.harness import CONFINED
from core.evaluation.walls import cpu_time, linux, sandbox
from core.evaluation.walls import gpu as gpu_walls
from core.evaluation.zygote_messages import JOB_FD, RESULT_FD, SANDBOX_FAILED, Exited, Kill, Ready, Spawn, Start

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _hidden() -> list[str]:
    """This repository's packages, should they be installed beside torch: task sources and their kernels are not for
    candidates to read."""
    return [os.path.join(_ROOT, name) for name in ("actors", "bus", "configs", "core", "runners", "tests", "runs")]


def _work(kind: str) -> Any:
    """Import everything that a child needs; returns the child's function (job fd, result fd, folder)."""
    if "triton" in sys.modules:  # this is read when it is imported
        raise ImportError("this torch imports Triton by itself: zygotes of different kinds can't share a nursery")
    if kind == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    torch.set_num_threads(1)
    # Reads the CPU's description, once: inside the jail there is no /proc to read it from.
    torch.cpu._is_avx2_supported()
    if kind == "compile":
        from core.evaluation.compilers import compile_child

        compile_child.warm()
        return compile_child.run
    if kind == "gpu":
        from core.evaluation.gpu import child as gpu_child

        gpu_child.warm()
        return gpu_child.run
    from core.evaluation import pair, remote
    from core.evaluation.interpreter import engine as interpreter

    interpreter.install()
    remote.warm()
    return pair.run


def _child(start: Start, spawn: Spawn, fds: list[int], work: Any, folder: str, parent: int) -> None:
    """Everything that happens in the forked process; never returns."""
    code = SANDBOX_FAILED
    try:
        quiet = os.open(os.devnull, os.O_RDONLY)
        # Out of the way first: a source may sit on a number that is a target of another.
        high = [os.dup2(fd, 40 + index) for index, fd in enumerate([quiet, fds[2], fds[2], fds[0], fds[1]])]
        for number, fd in enumerate(high):
            os.dup2(fd, number)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        two = start.kind == "interpret"
        sandbox.confine(start.walls, spawn.limits, folder, start.slot, parent, [JOB_FD, RESULT_FD], forks=two)
        for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR", "HOME"):
            os.environ[name] = folder
        if two:
            work(start.walls, spawn.limits, start.slot, folder, JOB_FD, RESULT_FD)
        else:
            code = 70
            os.write(RESULT_FD, CONFINED)
            work(JOB_FD, RESULT_FD, folder)
        code = 0
    except OSError as error:
        os.write(2, f"sandbox: {error}\n".encode())
    except BaseException:
        if code == SANDBOX_FAILED:  # our own mistake: say where
            os.write(2, traceback.format_exc().encode())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _reap(child: int, cpu_limit_s: int, leftovers: bool) -> Exited:
    out_of_time = cpu_time.ran_out(child, cpu_limit_s)
    _, status, usage = os.wait4(child, 0)
    if leftovers:
        _sweep()
    return Exited(
        code=os.waitstatus_to_exitcode(status),
        peak_mb=usage.ru_maxrss // 1024,
        cpu_s=usage.ru_utime + usage.ru_stime,
        out_of_time=out_of_time,
    )


def _sweep() -> None:
    """Kill and reap what a child left behind: orphans come to us, since we are a subreaper."""
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    own = os.getpid()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == own:
                found.append(int(name))
    return found


def _serve(control: socket.socket, start: Start, work: Any) -> None:
    """Fork, watch, report; ends with the trusted side's end of the socket, or ConnectionError."""
    namespaces = start.walls.level == "namespaces"
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if namespaces else -1
    sandbox.note_address_space()
    folder = start.folder
    if namespaces:
        gpu = start.kind == "gpu"
        extra = [*gpu_walls.devices(), *gpu_walls.readable()] if gpu else []
        folder = sandbox.build_jail(start.folder, _hidden(), [path for path in extra if path != "/proc"], proc=gpu)
    else:
        linux.become_subreaper()
    decoder = msgspec.msgpack.Decoder(Spawn | Kill)
    # What exists now stays out of the children's garbage collections, which would copy every page of it.
    gc.collect()
    gc.freeze()
    control.send(msgspec.msgpack.encode(Ready(packages=import_path.loaded())))
    parent = 0 if namespaces else os.getpid()
    while True:
        data, fds, _, _ = socket.recv_fds(control, 4096, 3)
        if not data:
            return
        message = decoder.decode(data)
        if isinstance(message, Kill):
            continue  # the child ended before the order to end it arrived
        if namespaces:
            linux.unshare(linux.CLONE_NEWPID)
        child = os.fork()
        if child == 0:
            control.close()
            _child(start, message, fds, work, folder, parent)
        if namespaces:
            linux.setns(own_pids, linux.CLONE_NEWPID)
        for fd in fds:
            os.close(fd)
        watch = os.pidfd_open(child)
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        poll.register(control, select.POLLIN)
        alive = True
        while alive:
            for fd, _ in poll.poll():
                if fd == watch:
                    alive = False
                elif not control.recv(4096):
                    os.kill(child, signal.SIGKILL)
                    os._exit(0)
                else:
                    os.kill(child, signal.SIGKILL)
        os.close(watch)
        control.send(msgspec.msgpack.encode(_reap(child, message.limits.cpu_limit_s, leftovers=not namespaces)))


def main(control_fd: int, parent: int) -> None:
    """Entry of the process that a nursery forks, with one end of the trusted side's SOCK_SEQPACKET pair."""
    linux.die_with_parent(parent)
    control = socket.socket(fileno=control_fd)
    try:
        first = control.recv(65536)
    except ConnectionError:
        first = b""
    if not first:  # the owner is gone already
        return
    start = msgspec.msgpack.decode(first, type=Start)
    if start.walls.level == "namespaces":
        sandbox.enter_namespaces(sandbox.outer_flags(start.walls))
        zygote = os.fork()
        if zygote:  # stays as the parent outside, so that the end of either ends both
            control.close()
            os._exit(max(0, os.waitstatus_to_exitcode(os.waitpid(zygote, 0)[1])))
        linux.die_with_parent(0)
    work = _work(start.kind)
    sys.path.remove(_ROOT)  # our own packages are imported; children find only the Python installation
    with contextlib.suppress(ConnectionError):  # the owner is gone, so there is nobody to serve, nor to tell
        _serve(control, start, work)
