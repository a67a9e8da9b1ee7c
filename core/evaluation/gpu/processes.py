"""Which processes are on a GPU, and which of them are ours and should be dead.

NVML (nvidia-ml-py) where it can be imported, else nvidia-smi; without either nothing is known, and nothing is killed.
Process ids are those that this process sees in /proc; what can't be seen there is never touched. A process is known by
its id and its start time together, so that an id that was given to somebody else is not mistaken for ours.

A ghost is a process on the GPU that was seen below one of our workers and whose reason to live is gone: its worker is
dead, or its worker says that it has no child now.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from core.evaluation.walls import gpu as gpu_walls

_SMI_S = 10.0
_GONE_S = 3.0


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process, for as long as this machine runs."""

    pid: int
    start: int
    """Ticks from the machine's start to the process's."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of one GPU's memory and of who uses it."""

    used_mb: int = 0
    """Of the whole GPU; what the driver keeps for itself included."""
    total_mb: int = 0
    processes: dict[int, int] = {}
    """pid -> MB; -1 where the driver does not tell."""

    @property
    def unaccounted_mb(self) -> int | None:
        """Memory in use that belongs to no process; None where processes can't be seen or don't tell."""
        if not self.processes or min(self.processes.values()) < 0:
            return None
        return self.used_mb - sum(self.processes.values())


def physical(device: str) -> str:
    """The driver's number or UUID for `cuda:N` of this process; raises ValueError for another word."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise ValueError(f"device {device!r}: wanted cuda or cuda:N")
    shown, index = gpu_walls.shown(), int(number or "0")
    return shown[index] if index < len(shown) else str(index)


@cache
def _nvml() -> Any:
    """The initialised library, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _asked_for(device: str) -> str:
    """As the driver's tools know it: they take no beginning of a UUID."""
    which = physical(device)
    known = None if which.isdigit() else gpu_walls.card(which)
    return known.uuid if known else which


def _handle(library: Any, device: str) -> Any:
    which = _asked_for(device)
    return library.nvmlDeviceGetHandleByIndex(int(which)) if which.isdigit() else library.nvmlDeviceGetHandleByUUID(
        which.encode() if isinstance(which, str) else which
    )  # fmt: skip


def identity(device: str) -> str:
    """A name for the GPU that all processes of this machine agree on; `cpu` for the CPU."""
    if device == "cpu":
        return "cpu"
    library = _nvml()
    if library is not None:
        with contextlib.suppress(library.NVMLError):
            found = library.nvmlDeviceGetUUID(_handle(library, device))
            return found.decode() if isinstance(found, bytes) else str(found)
    name = physical(device)  # a number in one process's environment, a UUID in another's
    known = gpu_walls.card(name)
    return (known.uuid if known else "") or _smi_uuid(name) or f"cuda-{name}"


def _smi_uuid(which: str) -> str:
    """Of a GPU that nobody has used yet, of which the driver's folder does not tell it; empty where it can't be had."""
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        ((uuid,),) = _smi(which, "--query-gpu=uuid")
        return uuid if uuid.startswith("GPU-") else ""
    return ""


def read(device: str) -> Reading | None:
    """None where the driver can't be asked."""
    if device == "cpu":
        return None
    library = _nvml()
    if library is None:
        return _read_smi(_asked_for(device))
    try:
        handle = _handle(library, device)
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        running = library.nvmlDeviceGetComputeRunningProcesses(handle)
    except library.NVMLError:
        return None
    found = {one.pid: -1 if one.usedGpuMemory is None else one.usedGpuMemory // 2**20 for one in running}
    return Reading(used_mb=memory.used // 2**20, total_mb=memory.total // 2**20, processes=found)


def _smi(which: str, query: str) -> list[list[str]]:
    command = ["nvidia-smi", f"--id={which}", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True)
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _read_smi(which: str) -> Reading | None:
    try:
        ((used, total),) = _smi(which, "--query-gpu=memory.used,memory.total")
        rows = _smi(which, "--query-compute-apps=pid,used_memory")
        found = {int(pid): int(mb) if mb.isdigit() else -1 for pid, mb in rows}
        return Reading(used_mb=int(used), total_mb=int(total), processes=found)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


class XidWatch:
    """Errors that the driver reports of one GPU since this was made."""

    def __init__(self, device: str) -> None:
        self._library = None if device == "cpu" else _nvml()
        self._events: Any = None
        if self._library is None:
            return
        library = self._library
        try:
            self._events = library.nvmlEventSetCreate()
            library.nvmlDeviceRegisterEvents(
                _handle(library, device), library.nvmlEventTypeXidCriticalError, self._events
            )
        except library.NVMLError:  # not allowed here, or the GPU has none
            self._events = None

    @property
    def watching(self) -> bool:
        return self._events is not None

    def new(self) -> list[int]:
        """Xids since the last call."""
        found: list[int] = []
        if self._events is None:
            return found
        assert self._library is not None
        with contextlib.suppress(self._library.NVMLError):  # its word for "none"
            while len(found) < 100:
                found.append(int(self._library.nvmlEventSetWait(self._events, 0).eventData))
        return found


# --- processes of this machine ---


def _stat(pid: int) -> tuple[int, int, str] | None:
    """(parent, start, state) of a process that can be seen."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(words[1]), int(words[19]), words[0]


def this(pid: int) -> Process | None:
    """The process that has this id now; None where there is none, or it has ended and waits to be reaped."""
    found = _stat(pid)
    return None if found is None or found[2] == "Z" else Process(pid=pid, start=found[1])


def alive(process: Process) -> bool:
    return this(process.pid) == process


def below(pid: int) -> set[Process]:
    """All processes below this one."""
    children: dict[int, list[Process]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        found = _stat(int(name))
        if found is not None and found[2] != "Z":
            children.setdefault(found[0], []).append(Process(pid=int(name), start=found[1]))
    seen: set[Process] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in seen:
                seen.add(child)
                todo.append(child.pid)
    return seen


def ghosts(on_gpu: Iterable[int], ours: dict[Process, Process], wanted: set[Process]) -> list[Process]:
    """Processes on the GPU that are ours and should be dead.

    Args:
        on_gpu: ids of the processes on the GPU.
        ours: process that was seen below one of our workers -> that worker.
        wanted: processes that have a reason to live.
    """
    by_id = {process.pid: process for process in ours if alive(process)}
    found = [by_id[pid] for pid in on_gpu if pid in by_id]
    return [process for process in found if process not in wanted]


def kill(found: Iterable[Process], wait_s: float = _GONE_S) -> tuple[int, list[Process]]:
    """(how many were ended, which are still there after `wait_s`). Those that can't be opened by id are left alone."""
    ended, left = 0, []
    for process in found:
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            continue
        try:
            if not alive(process):  # the descriptor keeps the id from being given away: from here it is this one
                continue
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except OSError:
            left.append(process)
            continue
        finally:
            os.close(descriptor)
        deadline = time.monotonic() + wait_s
        while alive(process) and time.monotonic() < deadline:
            time.sleep(0.02)
        if alive(process):
            left.append(process)
        else:
            ended += 1
    return ended, left
