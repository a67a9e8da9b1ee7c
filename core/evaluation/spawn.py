"""The trusted side's handle on a zygote: start it, run one job in a child, get frames back, end it.

What comes back is bounded (frames, printed output) and is data only. A zygote that dies or does not answer is our
trouble, not the candidate's: `ZygoteError`, and the caller starts another.
"""

import contextlib
import fcntl
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import msgspec

from core.evaluation import sandbox, zygote

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PREFIX = "kernelmill-judge-"
_START_S = 180.0
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
    garbled: bool = False
    """The result pipe held something else than frames, or too much."""
    timed_out: bool = False
    flooded: bool = False
    code: int = 0
    output: str = ""
    """The beginning of what was printed."""
    peak_mb: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


def _environment(kind: str) -> dict[str, str]:
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
    return {**base, "TRITON_INTERPRET": "1"} if kind == "interpret" else base


class Zygote:
    """One zygote process and its control socket."""

    def __init__(self, kind: str, walls: sandbox.Walls, slot: int) -> None:
        """`kind` is `interpret` or `compile`; `slot` numbers the zygotes of a machine's judge (it picks the user
        id)."""
        self.kind, self.walls, self.slot = kind, walls, slot
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder = ""
        self._ready = False

    def start(self) -> None:
        """Start the process; its imports go on while the caller does other things."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _remove_stale()
        self._folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        if self.walls.own_uid and self.walls.level == "basic":
            os.chmod(self._folder, 0o711)
        code = (
            f"import sys; sys.path.insert(0, {_ROOT!r}); from core.evaluation.zygote import main; "
            f"main({theirs.fileno()}, {os.getpid()})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            pass_fds=[theirs.fileno()],
            env=_environment(self.kind),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        start = zygote.Start(kind=self.kind, walls=self.walls, slot=self.slot, folder=self._folder)
        ours.send(msgspec.msgpack.encode(start))
        self._control, self._ready = ours, False

    def wait_ready(self, timeout_s: float = _START_S) -> None:
        if not self._ready:
            assert self._control is not None
            self._control.settimeout(timeout_s)
            data = b""
            with contextlib.suppress(OSError):
                data = self._control.recv(4096)
            if not data:
                raise ZygoteError(f"the {self.kind} zygote did not start within {timeout_s:.0f} s (see its stderr)")
            self._control.settimeout(None)
            self._ready = True
            if self.walls.level == "namespaces":
                os.rmdir(self._folder)  # the jail's root has moved away from it: even kill -9 leaves nothing
                self._folder = ""

    def stop(self) -> None:
        """End it and everything below it; remove its folder."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()  # its namespace goes with it; in `basic` the child dies with the zygote
            self._process.wait()
            self._process = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""
        self._ready = False

    def run(
        self, header: dict[str, Any], blobs: list[bytes], limits: sandbox.Limits, output_kb: int, result_mb: int
    ) -> Outcome:
        """Run one job to its end, whatever that is; blocks for at most limits.wall_s and a little.

        Raises ZygoteError when the zygote is at fault.
        """
        self.wait_ready()
        assert self._control is not None
        if self.walls.level == "basic":
            self._clear_folder()
        job = _job_file(header, blobs)
        result_r, result_w = os.pipe2(os.O_CLOEXEC)
        output_r, output_w = os.pipe2(os.O_CLOEXEC)
        try:
            for fd in (result_r, output_r):
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
            with contextlib.suppress(OSError):
                fcntl.fcntl(result_w, fcntl.F_SETPIPE_SZ, 2**20)
            started = time.monotonic()
            socket.send_fds(
                self._control, [msgspec.msgpack.encode(zygote.Spawn(limits=limits))], [job, result_w, output_w]
            )
            for fd in (job, result_w, output_w):
                os.close(fd)
            job = result_w = output_w = -1
            return self._watch(result_r, output_r, started, limits.wall_s, output_kb * 1024, result_mb * 2**20)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ZygoteError(f"the {self.kind} zygote is gone: {error}") from error
        finally:
            for fd in (job, result_r, result_w, output_r, output_w):
                if fd >= 0:
                    os.close(fd)

    def _clear_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.mkdir(self._folder, 0o700)
        if self.walls.own_uid:
            os.chown(self._folder, sandbox.FIRST_UID + self.slot, sandbox.FIRST_UID + self.slot)

    def _watch(
        self, result: int, output: int, started: float, wall_s: float, output_limit: int, result_limit: int
    ) -> Outcome:
        assert self._control is not None
        outcome = Outcome(frames=[])
        received, printed, drained = bytearray(), bytearray(), 0
        poll = select.poll()
        for fd in (result, output, self._control.fileno()):
            poll.register(fd, select.POLLIN)
        deadline = started + wall_s
        killed_at = 0.0
        exited: zygote.Exited | None = None
        buffer = 1 << 20
        while exited is None:
            now = time.monotonic()
            if killed_at and now - killed_at > 30:
                raise ZygoteError(f"the {self.kind} zygote did not end its child within 30 s")
            if not killed_at and now >= deadline:
                outcome.timed_out = True
                killed_at = self._kill(now)
            wait_s = 1.0 if killed_at else max(0.0, deadline - now)
            for fd, _ in poll.poll(int(wait_s * 1000) + 1):
                if fd == self._control.fileno():
                    report = self._control.recv(4096)
                    if not report:
                        raise ZygoteError(f"the {self.kind} zygote died")
                    exited = msgspec.msgpack.decode(report, type=zygote.Exited)
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
                        outcome.garbled = True
                        killed_at = self._kill(now)
        for fd, into in ((result, received), (output, printed)):
            while data := _read(fd, buffer):
                into += data if into is received else data[: max(0, output_limit - len(printed))]
                if len(received) > result_limit:
                    outcome.garbled = True
                    break
        outcome.code, outcome.peak_mb, outcome.cpu_s = exited.code, exited.peak_mb, exited.cpu_s
        outcome.wall_s = time.monotonic() - started
        outcome.output = printed.decode("utf-8", "replace")
        confined = received[:1] == zygote.CONFINED
        del received[:1]
        if exited.code == zygote.SANDBOX_FAILED and not confined:
            raise ZygoteError(f"the candidate's sandbox could not be built: {outcome.output.strip()[-300:]}")
        outcome.frames, whole = _frames(received)
        # A child that was killed may have been in the middle of a frame.
        outcome.garbled = outcome.garbled or (not whole and not killed_at and exited.code == 0)
        return outcome

    def _kill(self, now: float) -> float:
        assert self._control is not None
        self._control.send(msgspec.msgpack.encode(zygote.Kill()))
        return now


def _remove_stale() -> None:
    """Folders of owners that were killed before they could tidy up."""
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


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


def _frames(data: bytearray) -> tuple[list[tuple[dict[str, Any], bytes]], bool]:
    """Frames as far as they go, and whether that was everything."""
    found: list[tuple[dict[str, Any], bytes]] = []
    view = memoryview(data)
    while view:
        length = int.from_bytes(view[:4], "little")
        if len(view) < 4 + length:
            return found, False
        try:
            header = msgspec.msgpack.decode(view[4 : 4 + length], type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
            return found, False
        size = header.get("blob_bytes")
        if not isinstance(size, int) or size < 0 or len(view) < 4 + length + size:
            return found, False
        found.append((header, bytes(view[4 + length : 4 + length + size])))
        view = view[4 + length + size :]
    return found, True
