"""The trusted side's handle on a zygote: start it, run one job in a child, get frames back, end it.

What comes back is bounded (frames, printed output) and is data only. A zygote that dies or does not answer is our
trouble, not the candidate's: `ZygoteError`, and the caller starts another.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import msgspec

from core.evaluation import harness, import_path, nursery, zygote_messages
from core.evaluation.walls import gpu as gpu_walls
from core.evaluation.walls import jail, sandbox, scratch
from core.evaluation.walls.held_up import LOOK_S, HeldUp, below, most_s
from core.evaluation.walls.namespaces import LAST_SLOT

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_START_S = 180.0
_LOOK_S = 0.1
"""How often a folder on the machine's disk is looked at."""
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write
_ADD_SEALS = 1033
_DRAIN_LIMIT_BYTES = 64 * 2**20
"""A candidate that prints more than this is stopped; below it, what is too much is thrown away."""


class ZygoteError(RuntimeError):
    """Trouble on our side: the sandbox could not be built or the zygote is gone."""


class Outcome(msgspec.Struct, kw_only=True):
    """One child's life as seen from outside."""

    frames: list[tuple[dict[str, Any], bytes]]
    """(header, blob) in order; whatever the child wrote."""
    oversized: bool = False
    """It sent more than the outputs can hold; the child was ended there."""
    cut_short: bool = False
    """Enough was seen; the child was ended there."""
    timed_out: bool = False
    """By the wall's clock, or by the limit on processor time."""
    flooded: bool = False
    """It printed far too much."""
    overfull: bool = False
    """It wrote far too much to its folder (`basic` only; a tmpfs refuses by itself)."""
    code: int = 0
    output: str = ""
    """The beginning of what was printed."""
    peak_mb: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


def _environment(kind: str, walls: sandbox.Walls) -> dict[str, str]:
    """Made from nothing, so that no token of the run is in it."""
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "candidate",
        "HOME": "/nonexistent",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
    }
    if kind != "gpu":
        return base
    del base["CUDA_VISIBLE_DEVICES"]
    return {**base, **gpu_walls.environment(walls.hides_files)}


def prepare() -> list[int]:
    """Start now what the zygotes of the CPU tier are forked from, for forks of this process too; their descriptors."""
    nursery.share()
    return nursery.of_zygotes(_environment("interpret", sandbox.Walls(level="basic"))).descriptors


class Zygote:
    """One zygote process and its control socket."""

    def __init__(self, kind: str, walls: sandbox.Walls, slot: int) -> None:
        """`kind` is `interpret` or `compile`; `slot` numbers the zygotes of a machine's judge (it picks the user
        id)."""
        self.kind, self.walls, self.slot = kind, walls, slot
        self._process: nursery.Forked | subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._claim: socket.socket | None = None
        self._outer, self._lock = "", -1
        self._trouble = ""
        self._ready = False
        self._standing: tuple[int, ...] = ()
        """Its own processes beside `pid`."""

    def start(self) -> None:
        """Start the process; imports go on while the caller does other things. Trouble is told by `wait_ready`."""
        self._trouble = ""
        try:
            self._start()
        except OSError as error:
            self._trouble = error.strerror or str(error)

    def _start(self) -> None:
        if self.walls.own_uid and self._claim is None:
            self.slot, self._claim = _claim_user(self.slot)
        if self.walls.level == "namespaces":
            folder = jail.MOUNT_POINT
        else:
            self._outer, self._lock = scratch.make(self._uid)
            folder = scratch.renew(self._outer, self._uid, 1)
            if self._uid is not None:
                _end_processes_of(self._uid)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, self._ready = ours, False
        with theirs:
            self._process = self._began(theirs.fileno(), _environment(self.kind, self.walls))
        start = zygote_messages.Start(kind=self.kind, walls=self.walls, slot=self.slot, folder=folder)
        ours.send(msgspec.msgpack.encode(start))

    def _began(self, control: int, environment: dict[str, str]) -> "nursery.Forked | subprocess.Popen[bytes]":
        """One on a GPU imports torch itself: what was imported before a fork was never tried on a card."""
        if self.kind != "gpu":
            return nursery.of_zygotes(environment).fork(control)
        code = f"sys.path.insert(0, {_ROOT!r}); from core.evaluation.zygote import main; main({control}, {os.getpid()})"
        return subprocess.Popen(
            import_path.python(code), pass_fds=[control], env=environment, stdin=subprocess.DEVNULL,
            start_new_session=True, cwd="/",
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of its process, 0 while there is none or it is not forked yet; all its children are below it."""
        return self._process.pid if self._process is not None else 0

    @property
    def _uid(self) -> int | None:
        return sandbox.candidate_uid(self.slot) if self.walls.own_uid else None

    def wait_ready(self, timeout_s: float = _START_S) -> None:
        """Raises ZygoteError when it could not be started or did not get ready in time."""
        if self._trouble or self._control is None:
            raise ZygoteError(self._trouble or f"the {self.kind} zygote was not started")
        if not self._ready:
            self._control.settimeout(timeout_s)
            try:
                data = self._control.recv(4096)
            except TimeoutError:
                raise ZygoteError(f"the {self.kind} zygote did not start within {timeout_s:.0f} s") from None
            except OSError:
                data = b""
            if not data:
                raise ZygoteError(
                    f"the {self.kind} zygote ended while it started: its last words are in the log before this line; "
                    f"what is installed counts there, of PYTHONPATH only folders of packages (docs/sandbox.md)"
                )
            self._control.settimeout(None)
            ready = msgspec.msgpack.decode(data, type=zygote_messages.Ready)
            self._trouble = import_path.differences(ready.packages)
            if self._trouble:
                raise ZygoteError(self._trouble)
            self._standing = below(self.pid)
            self._ready = True

    def stop(self) -> None:
        """End it and everything below it; remove its folder."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()  # its namespace goes with it; in `basic` the child dies with the zygote
            self._process.wait()
            self._process = None
        if self._outer:
            if self._uid is not None:
                _end_processes_of(self._uid)
            with contextlib.suppress(OSError):  # a full or vanished disk; the next start tries again
                scratch.remove(self._outer)
            os.close(self._lock)
            self._outer, self._lock = "", -1
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        self._ready = False

    def run(
        self,
        header: dict[str, Any],
        blobs: list[bytes],
        limits: sandbox.Limits,
        output_kb: int,
        result_mb: int,
        enough: Callable[[dict[str, Any], bytes], bool] | None = None,
    ) -> Outcome:
        """Run one job to its end, whatever that is; blocks for at most limits.wall_s and a little, or for
        `held_up.most_s` of it on a machine that has no processor for the job.

        `enough` sees every frame as it arrives; when it answers True the child is ended there.

        Raises ZygoteError when the zygote is at fault.
        """
        self.wait_ready()
        assert self._control is not None
        job = result_r = result_w = output_r = output_w = -1
        try:
            if self._outer:
                scratch.renew(self._outer, self._uid, limits.tmp_mb)
            job = _job_file(header, blobs)
            result_r, result_w = os.pipe2(os.O_CLOEXEC)
            output_r, output_w = os.pipe2(os.O_CLOEXEC)
            for fd in (result_r, output_r):
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
            with contextlib.suppress(OSError):
                fcntl.fcntl(result_w, fcntl.F_SETPIPE_SZ, 2**20)
            started = time.monotonic()
            socket.send_fds(
                self._control, [msgspec.msgpack.encode(zygote_messages.Spawn(limits=limits))], [job, result_w, output_w]
            )
            for fd in (job, result_w, output_w):
                os.close(fd)
            job = result_w = output_w = -1
            return self._watch(result_r, output_r, started, limits, output_kb * 1024, result_mb * 2**20, enough)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ZygoteError(f"the {self.kind} zygote is gone: {error}") from error
        except OSError as error:
            raise ZygoteError(error.strerror or str(error)) from error
        finally:
            for fd in (job, result_r, result_w, output_r, output_w):
                if fd >= 0:
                    os.close(fd)

    def _watch(
        self, result: int, output: int, started: float, limits: sandbox.Limits, output_limit: int, result_limit: int,
        enough: Callable[[dict[str, Any], bytes], bool] | None,
    ) -> Outcome:  # fmt: skip
        assert self._control is not None
        outcome = Outcome(frames=[])
        received, printed, drained = bytearray(), bytearray(), 0
        shown = len(harness.CONFINED)
        poll = select.poll()
        for fd in (result, output, self._control.fileno()):
            poll.register(fd, select.POLLIN)
        deadline, held_up = started + limits.wall_s, HeldUp(self.pid, self._standing)
        killed_at, looked_at = 0.0, started
        exited: zygote_messages.Exited | None = None
        buffer = 1 << 20
        while exited is None:
            now = time.monotonic()
            if killed_at and now - killed_at > 30:
                raise ZygoteError(f"the {self.kind} zygote did not end its child within 30 s")
            if not killed_at and now >= min(deadline, looked_at + LOOK_S):
                deadline = started + min(limits.wall_s + held_up.seconds(), most_s(limits.wall_s))
                looked_at = now
            if not killed_at and now >= deadline:
                outcome.timed_out = True
                killed_at = self._kill(now)
            wait_s = 1.0 if killed_at else max(0.0, min(deadline, looked_at + LOOK_S) - now)
            if self._outer and not killed_at:
                wait_s = min(wait_s, _LOOK_S)
                if scratch.overfull(self._outer, limits.tmp_mb, sandbox.TMP_FILES):
                    outcome.overfull = True
                    killed_at = self._kill(now)
                elif not scratch.room(self._outer):
                    raise ZygoteError(f"the disk of {self._outer} is full: free some, or set TMPDIR")
            for fd, _ in poll.poll(int(wait_s * 1000) + 1):
                if fd == self._control.fileno():
                    report = self._control.recv(4096)
                    if not report:
                        raise ZygoteError(f"the {self.kind} zygote died")
                    exited = msgspec.msgpack.decode(report, type=zygote_messages.Exited)
                    continue
                data = _read(fd, buffer)
                if data is None:
                    continue
                if not data:
                    poll.unregister(fd)
                elif fd == output:
                    drained += len(data)
                    printed += data[: max(0, output_limit - len(printed))]
                    if drained > _DRAIN_LIMIT_BYTES and not killed_at:
                        outcome.flooded = True
                        killed_at = self._kill(now)
                else:
                    received += data
                    if len(received) > result_limit and not killed_at:
                        outcome.oversized = True
                        killed_at = self._kill(now)
                    while enough is not None and not killed_at and (frame := _frame_at(received, shown)) is not None:
                        shown = frame[2]
                        if enough(frame[0], frame[1]):
                            outcome.cut_short = True
                            killed_at = self._kill(now)
        for fd, into in ((result, received), (output, printed)):
            while data := _read(fd, buffer):
                into += data if into is received else data[: max(0, output_limit - len(printed))]
                if len(received) > result_limit:
                    outcome.oversized = True
                    break
        outcome.code, outcome.peak_mb, outcome.cpu_s = exited.code, exited.peak_mb, exited.cpu_s
        outcome.wall_s = time.monotonic() - started
        outcome.timed_out |= exited.out_of_time
        outcome.output = printed.decode("utf-8", "replace")
        confined = received[:1] == harness.CONFINED
        del received[:1]
        if exited.code == zygote_messages.SANDBOX_FAILED and not confined:
            raise ZygoteError(f"the candidate's sandbox could not be built: {outcome.output.strip()[-1500:]}")
        outcome.frames, whole = _frames(received)
        # A child that was killed may have been in the middle of a frame.
        if not whole and not killed_at and not outcome.oversized and exited.code == 0:
            raise ZygoteError("what came back from the confined process can't be read")
        return outcome

    def _kill(self, now: float) -> float:
        assert self._control is not None
        self._control.send(msgspec.msgpack.encode(zygote_messages.Kill()))
        return now


def _claim_user(first: int) -> tuple[int, socket.socket]:
    """The first slot from `first` on whose users no judge of this machine has, and the socket that holds the claim;
    the kernel lets go of it when this process ends, however it does."""
    for slot in range(first, LAST_SLOT):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0kernelmill-judge-{slot}")
        except OSError:
            claim.close()
            continue
        return slot, claim
    raise OSError(errno.EAGAIN, f"all {LAST_SLOT} users for candidates are taken on this machine")


def _end_processes_of(uid: int) -> None:
    """What a killed zygote's children left: the claim says that this user is ours alone."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if _real_uid(name) == uid:
                os.kill(int(name), signal.SIGKILL)


def _real_uid(pid: str) -> int:
    """Of processes that don't show themselves, /proc belongs to root."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))


def _read(fd: int, size: int) -> bytes | None:
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None


def _job_file(header: dict[str, Any], blobs: list[bytes]) -> int:
    """A sealed memory file: header length, header, tensor bytes."""
    fd = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    body = msgspec.msgpack.encode(header)
    for part in (len(body).to_bytes(4, "little") + body, *blobs):
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
    return fd


def _frame_at(data: bytearray, start: int) -> tuple[dict[str, Any], bytes, int] | None:
    """The frame that begins there and where the next one does; None when it is not whole, or no frame."""
    length = int.from_bytes(data[start : start + 4], "little")
    if len(data) < start + 4 + length or len(data) < start + 4:
        return None
    try:
        header = msgspec.msgpack.decode(bytes(data[start + 4 : start + 4 + length]), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None
    size = header.get("blob_bytes")
    end = start + 4 + length
    if not isinstance(size, int) or size < 0 or len(data) < end + size:
        return None
    return header, bytes(data[end : end + size]), end + size


def _frames(data: bytearray) -> tuple[list[tuple[dict[str, Any], bytes]], bool]:
    """Frames as far as they go, and whether that was everything."""
    found: list[tuple[dict[str, Any], bytes]] = []
    start = 0
    while (frame := _frame_at(data, start)) is not None:
        found.append(frame[:2])
        start = frame[2]
    return found, start == len(data)
