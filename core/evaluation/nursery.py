"""Where zygotes come from: a process that has imported torch forks each of them.

A judge has zygotes of several kinds and starts a new one in place of each that is gone; to import torch takes two
seconds of a core, which are spent once.

    trusted process --(socket: 4 descriptors)--> nursery --fork--> zygote

What holds for a zygote holds here: the environment is made from nothing, no torch operation runs before a fork, no job
is read, so that what all zygotes inherit holds nothing secret. A zygote has its own session, standard output and error;
it ends with its nursery, and the nursery with the process that started it. Zygotes share a nursery where their
interpreter's path and environment are the same.
"""

import atexit
import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading

from core.evaluation import import_path
from core.evaluation.walls import linux

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PID, _ENDED, _KILL = b"p", b"e", b"k"
_FORK = b"f"


class Forked:
    """A zygote's process, for who asked for it: `subprocess.Popen` as far as that is needed."""

    def __init__(self, nursery: "_Nursery", fate: socket.socket) -> None:
        self._nursery, self._fate = nursery, fate
        self._pid, self._code = 0, None if nursery.running else -signal.SIGKILL

    @property
    def pid(self) -> int:
        """0 while it is not forked."""
        self._listen(0.0)
        return self._pid

    def kill(self) -> None:
        if self._code is None and not self.pid and self._nursery.importing:
            self._nursery.end()  # nobody waits for an import that nobody needs
        with contextlib.suppress(OSError):
            self._fate.send(_KILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status, minus the signal's number where one ended it; raises TimeoutError."""
        while self._code is None:
            if not self._listen(timeout_s):
                raise TimeoutError(f"process {self._pid} did not end within {timeout_s} s")
        self._fate.close()
        return self._code

    def _listen(self, timeout_s: float | None) -> bool:
        """Take one message, if one comes in time."""
        if self._code is not None:
            return True
        ready = select.poll()
        ready.register(self._fate, select.POLLIN)
        if not ready.poll(None if timeout_s is None else timeout_s * 1000):
            return False
        try:
            message = self._fate.recv(16)
        except ConnectionError:
            message = b""
        if message[:1] == _PID:
            self._pid, self._nursery.importing = int(message[1:]), False
        else:  # without a word: it went with its nursery
            self._code = int(message[1:] or -signal.SIGKILL)
        return True


class _Nursery:
    def __init__(self, environment: dict[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The kernel ends it with the thread that started it; with another thread's process the socket's end does.
        owner = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        code = (
            f"sys.path.insert(0, {_ROOT!r}); from core.evaluation.nursery import main; main({theirs.fileno()}, {owner})"
        )
        self._process = subprocess.Popen(
            import_path.python(code),
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        self.importing = True

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def fork(self, control: int) -> Forked:
        fate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Its own stays that of the moment at which it was started.
            socket.send_fds(self._orders, [_FORK], [control, theirs.fileno(), *_standard()])
        return Forked(self, fate)

    def end(self) -> None:
        """And all that it forked."""
        self._process.kill()
        self._process.wait()
        self._orders.close()

    def forget(self) -> None:
        """It is another process's now."""
        self._orders.close()


def _standard() -> tuple[int, ...]:
    """Standard output and error of this process, if it has them."""
    with contextlib.suppress(OSError):
        os.fstat(1), os.fstat(2)
        return 1, 2
    return ()


_lock = threading.Lock()
_nurseries: dict[tuple[str, ...], _Nursery] = {}


def fork(environment: dict[str, str], control: int) -> Forked:
    """A new zygote with that environment, which is told the rest through `control`, its end of a SOCK_SEQPACKET pair;
    a copy of the descriptor goes to it. Does not wait. Raises OSError."""
    key = (*import_path.python(""), *(f"{name}={value}" for name, value in sorted(environment.items())))
    with _lock:
        nursery = _nurseries.get(key)
        if nursery is None or not nursery.running:
            nursery = _nurseries[key] = _Nursery(environment)
        return nursery.fork(control)


def _end_all() -> None:
    while _nurseries:
        _nurseries.popitem()[1].end()


def _forget_all() -> None:
    """A fork of the trusted process has its own; it must not hold the sockets of its parent's open."""
    global _lock
    _lock = threading.Lock()
    while _nurseries:
        _nurseries.popitem()[1].forget()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)


def main(orders_fd: int, owner: int) -> None:
    """Entry of the process. Returns in each zygote when it has done its work, and in the nursery when its owner is
    gone."""
    if owner:
        linux.die_with_parent(owner)
    orders = socket.socket(fileno=orders_fd)
    import torch  # noqa: F401

    from core.evaluation import zygote

    # What exists now stays out of the zygotes' garbage collections, which would copy every page of it.
    gc.collect()
    gc.freeze()
    own = os.getpid()
    born: dict[int, tuple[int, socket.socket]] = {}  # descriptor of a process -> its id, who wants to know its fate
    fates: dict[int, int] = {}  # descriptor of that socket -> process id
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in born:
                pid, fate = born.pop(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                poll.unregister(fd)
                os.close(fd)
                if fates.pop(fate.fileno(), 0):
                    poll.unregister(fate)
                with contextlib.suppress(OSError):
                    fate.send(_ENDED + str(code).encode())
                fate.close()
            elif fd in fates:  # an order to kill it, or nobody wants it any more
                os.kill(fates.pop(fd), signal.SIGKILL)  # it is not reaped yet, so this is still its id
                poll.unregister(fd)
            elif fd == orders_fd:
                message, received = b"", list[int]()
                with contextlib.suppress(ConnectionError):
                    message, received, _, _ = socket.recv_fds(orders, 16, 4)
                if not message:
                    return
                control, fate = received[0], socket.socket(fileno=received[1])
                try:
                    pid = os.fork()
                except OSError as error:
                    print(f"a zygote can't be forked: {error.strerror}", file=sys.stderr)
                    for descriptor in (fate.detach(), control, *received[2:]):
                        os.close(descriptor)
                    continue
                if pid == 0:
                    os.setsid()
                    for number, descriptor in enumerate(received[2:], start=1):
                        os.dup2(descriptor, number)
                    linux.close_all_but([control])
                    for one in (orders, fate, *(other for _, other in born.values())):
                        one.detach()  # closed already
                    zygote.main(control, own)
                    return
                with contextlib.suppress(OSError):
                    fate.send(_PID + str(pid).encode())
                for descriptor in (control, *received[2:]):
                    os.close(descriptor)
                watch = os.pidfd_open(pid)
                born[watch], fates[fate.fileno()] = (pid, fate), pid
                poll.register(watch, select.POLLIN)
                poll.register(fate, select.POLLIN)
