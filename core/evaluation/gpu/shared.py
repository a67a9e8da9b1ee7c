"""What the workers on one GPU know together: one small file per GPU of a machine, changed under a lock.

The kernel lets go of the locks when a process dies, however it does. The file's name holds the machine's boot id, since
monotonic times mean nothing after a restart; a file that can't be read (another version's) is begun anew.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from core.evaluation.gpu.condition import Condition
from core.evaluation.gpu.processes import Process

_LOOK_S = 0.02


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was seen below a worker."""

    process: Process
    worker: Process


class Kept(msgspec.Struct, kw_only=True):
    """The file's content."""

    condition: Condition = msgspec.field(default_factory=Condition)
    ours: list[Seen] = []
    active: dict[str, Process] = {}
    """Workers that judge a candidate on this GPU now."""
    entries: int = 0
    """Candidates so far."""
    quiet_ms: float = 0.0
    """What `gpu.quiet` reads on an idle GPU; 0: not known yet."""
    unaccounted_mb: int | None = None
    """Memory in use that belonged to no process when it was first looked at."""


class Shared:
    """One GPU's file."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """`name` is `gpu.processes.identity(device)`; `folder` defaults to the machine's temporary one."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        name = name.replace("/", "-")  # of a slice: MIG-GPU-.../1/0
        self._path = (folder or Path(tempfile.gettempdir())) / f"kernelmill-{os.getuid()}-health-{name}-{boot}"

    @contextlib.contextmanager
    def change(self) -> Iterator[Kept]:
        """The present state; what is changed in it is kept. Short: others wait."""
        with self._open("") as number:
            fcntl.flock(number, fcntl.LOCK_EX)
            kept = _decoded(os.pread(number, 1 << 22, 0))
            yield kept
            body = msgspec.msgpack.encode(kept)
            os.ftruncate(number, 0)
            os.pwrite(number, body, 0)

    def look(self) -> Kept:
        """The present state; changes to it are lost."""
        with self._open("") as number:
            fcntl.flock(number, fcntl.LOCK_SH)
            return _decoded(os.pread(number, 1 << 22, 0))

    @contextlib.contextmanager
    def sharing(self, alone: bool, wait_s: float) -> Iterator[None]:
        """Judge on this GPU, beside others or `alone`. A gate keeps newcomers out while somebody waits to be alone.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + wait_s
        with self._open("gate") as gate, self._open("share") as share:
            _take(gate, fcntl.LOCK_EX, deadline)
            _take(share, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, deadline)
            fcntl.flock(gate, fcntl.LOCK_UN)
            yield

    @contextlib.contextmanager
    def probing(self) -> Iterator[bool]:
        """Whether this process may probe now: one at a time."""
        with self._open("probe") as number:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    @contextlib.contextmanager
    def _open(self, what: str) -> Iterator[int]:
        path = f"{self._path}.{what}" if what else str(self._path)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield number
        finally:
            os.close(number)


def _decoded(data: bytes) -> Kept:
    try:
        return msgspec.msgpack.decode(data, type=Kept) if data else Kept()
    except (msgspec.DecodeError, msgspec.ValidationError):
        return Kept()


def _take(number: int, kind: int, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(number, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("other workers did not leave the GPU in time") from None
            time.sleep(_LOOK_S)
