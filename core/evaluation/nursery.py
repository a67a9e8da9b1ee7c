"""Where zygotes come from, and a pool's workers: a process that has imported torch forks each of them.

A judge has zygotes of several kinds, a pool has several workers, and each that is gone is started again; to import
torch takes two seconds of a core, which are spent once.

    trusted process --(socket: 4 descriptors)--> nursery --fork--> zygote or worker

No torch operation runs before a fork. What is forked has its own session, standard output and error; it ends with its
nursery, and the nursery with the thread or process that started it.

What holds for a zygote holds for its nursery: the environment is made from nothing and no job is read, so that what all
zygotes inherit holds nothing secret. Zygotes share a nursery where their interpreter's path and environment are the
same; workers that one nursery forked share the one that it had (`share`).
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
from collections.abc import Callable, Sequence

from core.evaluation import import_path
from core.evaluation.walls import linux

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PID, _ENDED, _KILL = b"p", b"e", b"k"
_FORK = "fork"


class Forked:
    """A forked process, for who asked for it: `subprocess.Popen` as far as that is needed."""

    def __init__(self, nursery: "Nursery", fate: socket.socket) -> None:
        self._nursery, self._fate = nursery, fate
        fate.setblocking(False)
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

    def poll(self) -> int | None:
        """Its exit status once it has ended, minus the signal's number where one ended it."""
        while self._code is None and self._listen(0.0):
            pass
        return self._code

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status; raises subprocess.TimeoutExpired."""
        while self._code is None:
            if not self._listen(timeout_s):
                raise subprocess.TimeoutExpired(f"process {self._pid}", timeout_s or 0.0)
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
        except BlockingIOError:  # another thread took it
            return True
        except OSError:
            message = b""
        if message[:1] == _PID:
            self._pid, self._nursery.importing = int(message[1:]), False
        elif self._code is None:  # without a word: it went with its nursery
            self._code = int(message[1:] or -signal.SIGKILL)
        return True


class Nursery:
    """The trusted side's handle. Raises OSError when it can't be started."""

    def __init__(
        self, command: Callable[[int, int], list[str]], environment: dict[str, str], cwd: str | None, with_thread: bool
    ) -> None:
        """`command` makes the words that start it from its end of the socket and its owner's process id (0: the end of
        the socket alone is what ends it). `with_thread`: the kernel ends it with the thread that started it."""
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owner = os.getpid() if with_thread else 0
        with theirs:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                command(theirs.fileno(), owner),
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=cwd,
            )
        self._handle = os.pidfd_open(self._process.pid)
        self.importing = True

    @property
    def running(self) -> bool:
        if self._orders.fileno() < 0:
            return False
        hung = select.poll()  # its sockets are closed before it can be waited for
        hung.register(self._orders, 0)
        if hung.poll(0):
            return False
        if self._process is not None:
            return self._process.poll() is None
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        return not ended.poll(0)

    @property
    def descriptors(self) -> list[int]:
        """What a fork of this process needs to use it."""
        return [self._orders.fileno(), self._handle]

    def fork(self, control: int, *numbers: int) -> Forked:
        """A process that gets a copy of the descriptor `control`, and the numbers. Does not wait. Raises OSError."""
        fate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            order = " ".join(map(str, [_FORK, *numbers])).encode()
            # Standard output and error are those of this moment, not those of the nursery's start.
            socket.send_fds(self._orders, [order], [control, theirs.fileno(), *_standard()])
        return Forked(self, fate)

    def end(self) -> None:
        """And all that it forked; one that others use as well ends with its own starter."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.forget()

    def inherit(self) -> None:
        """This process is a fork of the one that started it."""
        self._process, self.importing = None, False

    def forget(self) -> None:
        self._orders.close()
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def _standard() -> tuple[int, ...]:
    """Standard output and error of this process, if it has them."""
    with contextlib.suppress(OSError):
        os.fstat(1), os.fstat(2)
        return 1, 2
    return ()


_lock = threading.Lock()
_nurseries: dict[tuple[str, ...], Nursery] = {}
"""Of zygotes."""
_shared = False


def _zygotes(orders: int, owner: int) -> list[str]:
    code = f"sys.path.insert(0, {_ROOT!r}); from core.evaluation.nursery import main; main({orders}, {owner})"
    return import_path.python(code)


def of_zygotes(environment: dict[str, str]) -> Nursery:
    """The one for zygotes with that environment; started where there is none. Raises OSError."""
    key = (*import_path.python(""), *(f"{name}={value}" for name, value in sorted(environment.items())))
    with _lock:
        found = _nurseries.get(key)
        if found is None or not found.running:
            if found is not None:
                found.end()
            main_thread = threading.current_thread() is threading.main_thread()  # others may be short
            found = _nurseries[key] = Nursery(_zygotes, environment, "/", with_thread=main_thread)
        return found


def share() -> None:
    """Forks of this process use the nurseries of zygotes that it has."""
    global _shared
    _shared = True


def _end_all() -> None:
    while _nurseries:
        _nurseries.popitem()[1].end()


def _in_fork() -> None:
    """A fork must not hold the sockets of another process's nurseries open."""
    global _lock
    _lock = threading.Lock()
    for found in _nurseries.values():
        found.inherit() if _shared else found.forget()
    if not _shared:
        _nurseries.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_in_fork)


def main(orders_fd: int, owner: int) -> None:
    """Entry of a nursery of zygotes."""
    if owner:
        linux.die_with_parent(owner)
    import torch  # noqa: F401

    from core.evaluation import zygote

    serve(orders_fd, zygote.main)


def serve(orders_fd: int, entry: Callable[..., None], keep: Sequence[int] = ()) -> None:
    """Fork what is asked for; returns when the owner is gone, and in what was forked when `entry` has returned, which
    gets its descriptor, this process's id and the numbers. Descriptors `keep` stay open there."""
    orders = socket.socket(fileno=orders_fd)
    # What exists now stays out of the garbage collections of what is forked, which would copy every page of it.
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
                    message, received, _, _ = socket.recv_fds(orders, 256, 4)
                if not message:
                    return
                control, fate = received[0], socket.socket(fileno=received[1])
                try:
                    pid = os.fork()
                except OSError as error:
                    print(f"no process can be forked: {error.strerror}", file=sys.stderr)
                    for descriptor in (fate.detach(), control, *received[2:]):
                        os.close(descriptor)
                    continue
                if pid == 0:
                    os.setsid()
                    for number, descriptor in enumerate(received[2:], start=1):
                        os.dup2(descriptor, number)
                    linux.close_all_but([control, *keep])
                    for one in (orders, fate, *(other for _, other in born.values())):
                        one.detach()  # closed already
                    entry(control, own, *map(int, message.split()[1:]))
                    return
                with contextlib.suppress(OSError):
                    fate.send(_PID + str(pid).encode())
                for descriptor in (control, *received[2:]):
                    os.close(descriptor)
                watch = os.pidfd_open(pid)
                born[watch], fates[fate.fileno()] = (pid, fate), pid
                poll.register(watch, select.POLLIN)
                poll.register(fate, select.POLLIN)
