"""Run as a program: an executor and the host it forked, behind given walls; the host tries to reach the executor.

    python split_scene.py WALLS_JSON FOLDER  ->  {"worked": [attacks], "alive": bool, "intact": bool}

No torch here, so that a scene takes a fraction of a second.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
from core.evaluation.walls import linux, sandbox

SLOT = 40
LIBC = ctypes.CDLL(None, use_errno=True)
SECRET = ctypes.create_string_buffer(b"empty", 64)
OWNED = os.open("/dev/null", os.O_RDONLY)


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def _call(number: int, *arguments: int) -> int:
    return LIBC.syscall(ctypes.c_long(number), *[ctypes.c_ulong(argument) for argument in arguments])


def _others() -> list[int]:
    """Process ids that the host could guess."""
    executor = int(os.environ["EXECUTOR"])
    return [pid for pid in (executor, *range(1, 20)) if pid != os.getpid()]


def _foreign_memory(number: int) -> bool:
    """process_vm_readv (310) or process_vm_writev (311) at the address that this process inherited."""
    mine = ctypes.create_string_buffer(b"stolen", 64)
    local, remote = _Span(ctypes.addressof(mine), 64), _Span(ctypes.addressof(SECRET), 64)
    return any(_call(number, pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0) > 0 for pid in _others())


def _proc(name: str, mode: str) -> bool:
    done = False
    for pid in _others():
        try:
            with open(f"/proc/{pid}/{name}", mode) as file:
                if name == "mem":
                    file.seek(ctypes.addressof(SECRET))
                done = bool(file.read(1)) if "r" in mode else True
        except OSError:
            pass
    return done


def _owned_signal() -> bool:
    """Let the kernel send SIGKILL on input for a pipe."""
    read, write = os.pipe()
    for pid in _others():
        try:
            fcntl.fcntl(read, fcntl.F_SETOWN, pid)
            fcntl.fcntl(read, 10, signal.SIGKILL)  # F_SETSIG
            fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
            os.write(write, b"x")
        except OSError:
            continue
    return False  # seen by the executor's death


def _pidfd_kill() -> bool:
    return any((fd := _call(434, pid, 0)) >= 0 and _call(424, fd, 9, 0, 0) == 0 for pid in _others())


def _memory() -> bool:
    try:
        bytearray(2**29)
    except MemoryError:
        return False
    return True


def _thread() -> bool:
    """Threads are allowed exactly where they are counted."""
    ran: list[int] = []
    thread = threading.Thread(target=ran.append, args=(1,))
    try:
        thread.start()
        thread.join()
    except RuntimeError:
        pass
    return bool(ran) != (os.environ["THREADS"] == "1")


def _fork() -> bool:
    pid = _call(57)
    if pid == 0:
        os._exit(0)
    return pid > 0


def _open_descriptors() -> bool:
    return any(_call(5, fd, ctypes.addressof(ctypes.create_string_buffer(256))) == 0 for fd in range(4, 300))


def _each(number: int, *arguments: int | ctypes.Array[Any]) -> bool:
    """Whether a call works on any other process; its first argument is the process id."""
    words = [argument if isinstance(argument, int) else ctypes.addressof(argument) for argument in arguments]
    return any(_call(number, pid, *words) == 0 for pid in _others())


ATTACKS: dict[str, Callable[[], bool]] = {
    "descriptors": _open_descriptors,
    "kill": lambda: _each(62, 9),
    "stop": lambda: _each(62, 19),
    "tgkill": lambda: any(_call(234, pid, pid, 9) == 0 for pid in _others()),
    "queue": lambda: _each(129, 9, ctypes.create_string_buffer(128)),
    "pidfd": _pidfd_kill,
    "owned_signal": _owned_signal,
    "seize": lambda: any(_call(101, 0x4206, pid, 0, 0) == 0 for pid in _others()),
    "read_memory": lambda: _foreign_memory(310),
    "write_memory": lambda: _foreign_memory(311),
    "proc_mem": lambda: _proc("mem", "rb"),
    "proc_mem_write": lambda: _proc("mem", "r+b"),
    "proc_maps": lambda: _proc("maps", "r"),
    "proc_environ": lambda: _proc("environ", "rb"),
    "proc_fd": lambda: any(os.access(f"/proc/{pid}/fd/{OWNED}", os.R_OK) for pid in _others()),
    "limits": lambda: _each(302, 0, (ctypes.c_ulong * 2)(1, 1), 0),
    "priority": lambda: any(_call(141, 0, pid, 19) == 0 for pid in _others()),
    "processors": lambda: _each(203, 8, (ctypes.c_ulong * 1)(1)),
    "memory": _memory,
    "thread": _thread,
    "outlive": lambda: _call(157, 1, 0, 0, 0) == 0,
    "memory_file": lambda: _call(319, ctypes.addressof(ctypes.create_string_buffer(b"m")), 0) >= 0,
    "socket": lambda: _call(41, 1, 1, 0) >= 0,
    "fork": _fork,
    "namespace": lambda: _call(272, linux.CLONE_NEWUSER) == 0,
    "group": lambda: _call(62, 0, 0) == 0 and os.getpgid(0) == 0,
    "uid": lambda: _call(117, 0, 0, 0) == 0 and os.environ["OWN_UID"] == "1",
}  # fmt: skip


def _host(walls: sandbox.Walls, executor: int, write: int) -> None:
    os.environ.update(EXECUTOR=str(executor), OWN_UID=str(int(walls.own_uid)))
    os.environ["THREADS"] = str(int(walls.counts_threads or not walls.seccomp))
    os.dup2(write, 3)
    sandbox.harden_host(walls, sandbox.Limits(memory_mb=256, wall_s=5), SLOT, executor, [3])
    worked = [name for name, attack in ATTACKS.items() if attack()]
    os.write(3, json.dumps(worked).encode())
    os._exit(0)


def _executor(walls: sandbox.Walls, folder: str, parent: int, out: int) -> None:
    limits = sandbox.Limits(memory_mb=1024, wall_s=5)
    sandbox.confine(walls, limits, folder, SLOT, parent, [out, OWNED], forks=True)
    read, write = os.pipe()
    go_read, go_write = os.pipe()
    executor = os.getpid()
    host = os.fork()
    if host == 0:
        os.read(go_read, 1)  # until the executor is ready: it is the target
        _host(walls, executor, write)
    sandbox.harden_executor(walls, limits, SLOT)
    SECRET.value = b"secret"
    os.close(write)
    os.write(go_write, b"x")
    found = b""
    while part := os.read(read, 65536):
        found += part
    os.waitpid(host, 0)
    answer = {"worked": json.loads(found or "null"), "alive": True, "intact": SECRET.value == b"secret"}
    os.write(out, json.dumps(answer).encode())
    os._exit(0)


def main(walls: sandbox.Walls, folder: str) -> None:
    """As the zygote does it."""
    sandbox.note_address_space()
    if walls.level == "namespaces":
        sandbox.enter_namespaces(sandbox.outer_flags(walls))
        if zygote := os.fork():
            os.waitpid(zygote, 0)
            return
        folder = sandbox.build_jail(folder, [])
        linux.unshare(linux.CLONE_NEWPID)
    elif walls.own_uid:
        os.chown(folder, sandbox.candidate_uid(SLOT), -1)
        os.chmod(os.path.dirname(folder), 0o711)
    parent = 0 if walls.level == "namespaces" else os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _executor(walls, folder, parent, os.dup2(1, 30))
        finally:
            traceback.print_exc()
            os._exit(1)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(sandbox.Walls(**json.loads(sys.argv[1])), sys.argv[2])
