"""What is known of one GPU's health, as data, and how it changes: pure, no GPU, no files, no torch.

    healthy --fault that quarantines--> quarantined --probe passed--> healthy
                                        quarantined --probe failed--> quarantined, `unfit` after PROBES of them in a row

A fault is the GPU's trouble, not a candidate's failure: what a candidate did is in its verdict. On NVIDIA GPUs an
illegal access kills the context of its own process only (the judge's own too), so most quarantines end with the first
probe; those that don't are why there are any. `grave` counts what may have spoiled the work of others on the same GPU:
an error of the hardware, and a probe that fails. Verdicts that wait for a quarantine's end, and those beside them, are
made again for that alone: a context that was lost while the GPU is sound spoils nobody else's work.
Times are seconds of the machine's monotonic clock, which all its processes share until it is restarted.
"""

import re
from typing import Any, Literal

import msgspec

from core.evaluation.verdict import Verdict

PROBES = 5
"""Failed probes in a row after which the GPU is unfit: work goes elsewhere, and it is probed now and then only."""
KEPT = 64
EXPLAINS_S = 5.0
"""An Xid that a program's own error makes is no news this long after a fault that explains it."""

FAULTS: dict[str, tuple[bool, bool, str]] = {
    "illegal_access": (True, False, "a candidate touched memory that is not its own"),
    "device_error": (True, False, "another error of the device in a candidate's process"),
    "xid": (True, True, "the driver reports an error of the GPU"),
    "xid_program": (True, False, "the driver reports an error that a program made"),
    "unkillable": (True, False, "a process on the GPU could not be ended"),
    "parent_error": (True, False, "the judge's own process got an error of the device"),
    "probe": (True, True, "a probe failed while nothing else was wrong"),
    "endless": (False, False, "a candidate was stopped after its time, its kernels with it"),
    "out_of_memory": (False, False, "a candidate used up the GPU's memory"),
    "crash": (False, False, "a candidate's process ended"),
}
"""category -> (it quarantines, it is grave, meaning)."""
STAYS = "on the GPU could not be ended"
LOST = "this judge's own CUDA context is lost"
"""How a verdict begins whose process can't judge any more."""
TOO_LARGE = "too large for this device"
RAN_ON = "kernels ran on while forward was not called"
"""How a verdict begins whose process was found to be what kept the GPU busy."""
PROGRAM_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Xids that a wrong program causes on a sound GPU (NVIDIA's list): exceptions, page faults, ended channels."""
Category = Literal["healthy", "quarantined", "unfit"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong."""

    category: str
    at: float
    pid: int
    """Of the worker that saw it."""
    began: float = 0.0
    """Since when it may have disturbed others; 0: at that moment."""
    text: str = ""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found."""

    passed: bool
    seconds: float
    memory_mb: int = 0
    """Of the GPU's memory that was written and read back."""
    why: str = ""
    """Of a probe that failed, one line."""

    @property
    def harmless(self) -> bool:
        """Whether a failed probe says nothing against what others compute on the GPU meanwhile."""
        return short_of_memory(self.why) or self.why.endswith(STAYS)


class Condition(msgspec.Struct, kw_only=True):
    """One GPU; shared by all workers on it."""

    quarantined_at: float = 0.0
    """0: healthy."""
    why: str = ""
    """Of the quarantine or of the latest failed probe."""
    failed_in_row: int = 0
    probed_at: float = 0.0
    grave: int = 0
    faults: dict[str, int] = {}
    recent: list[Fault] = []
    quarantines: int = 0
    probes_passed: int = 0
    probes_failed: int = 0
    probe_s: list[float] = []
    """Of the latest probes."""
    recovery_s: list[float] = []
    """From fault to passed probe, of the latest quarantines."""
    ghosts: int = 0
    """Processes of ours that were found on the GPU although they should be dead, and were killed."""
    again: int = 0
    """Verdicts made again since somebody else's trouble may have been in them."""
    leaked_mb: int = 0
    """Memory in use that belongs to no process, beyond what there was at the start."""
    xids: int = 0
    xids_seen: dict[int, int] = {}
    """Worker's pid -> how many of them it has seen: all watch the same GPU, and each error is counted once."""

    @property
    def state(self) -> Category:
        if not self.quarantined_at:
            return "healthy"
        return "unfit" if self.failed_in_row >= PROBES else "quarantined"

    def backoff_s(self) -> float:
        """Pause between the latest failed probe and the next one."""
        if self.state == "unfit":
            return 60.0
        return min(8.0, 0.5 * 2 ** (self.failed_in_row - 1)) if self.failed_in_row else 0.0

    def fault(self, fault: Fault) -> None:
        """Take note of it."""
        if fault.category not in FAULTS:
            raise ValueError(f"fault {fault.category!r}: wanted one of {', '.join(FAULTS)}")
        quarantines, grave, meaning = FAULTS[fault.category]
        if fault.category == "xid_program" and self._explained(fault.at):
            quarantines = False
        self.faults[fault.category] = self.faults.get(fault.category, 0) + 1
        self.recent = [*self.recent[1 - KEPT :], fault]
        self.grave += grave
        if quarantines and not self.quarantined_at:
            self.quarantined_at, self.failed_in_row = fault.at, 0
            self.quarantines += 1
            self.why = f"{meaning}: {fault.text}" if fault.text else meaning

    def probed(self, found: Probed, at: float) -> None:
        """A probe passed, which lifts a quarantine, or failed, which makes or keeps one."""
        self.probed_at = at
        self.probe_s = [*self.probe_s[1 - KEPT :], round(found.seconds, 4)]
        if found.passed:
            self.probes_passed += 1
            if self.quarantined_at:
                self.recovery_s = [*self.recovery_s[1 - KEPT :], round(max(0.0, at - self.quarantined_at), 4)]
            self.quarantined_at, self.failed_in_row, self.why = 0.0, 0, ""
            return
        self.probes_failed += 1
        before = self.grave
        if not self.quarantined_at:
            self.fault(Fault(category="probe", at=at, pid=0, text=found.why))
        # A GPU that is full of others' memory, and a process that takes long to end, spoil no results.
        self.grave = before + (not found.harmless)
        self.failed_in_row += 1
        self.why = found.why

    def watches(self, pid: int) -> None:
        """A worker sees Xids from now on."""
        self.xids_seen[pid] = self.xids

    def xid(self, number: int, at: float, pid: int) -> bool:
        """A worker saw one; whether it is new."""
        self.xids_seen[pid] = self.xids_seen.get(pid, self.xids) + 1
        if self.xids_seen[pid] <= self.xids:
            return False
        self.xids = self.xids_seen[pid]
        category = "xid_program" if number in PROGRAM_XIDS else "xid"
        self.fault(Fault(category=category, at=at, pid=pid, text=f"Xid {number}"))
        return True

    def endless_since(self, since: float, pid: int) -> bool:
        """Whether another worker's candidate that had to be stopped was running after `since`."""
        return any(fault.category == "endless" and fault.at > since and fault.pid != pid for fault in self.recent)

    def _explained(self, at: float) -> bool:
        causes = ("illegal_access", "device_error", "parent_error", "endless", "crash", "out_of_memory")
        return any(fault.category in causes and at - fault.at < EXPLAINS_S for fault in self.recent)

    def gauges(self) -> dict[str, float]:
        """Numbers for a beat; `read_gauges` is the way back."""
        numbers = {
            "gpu_state": float(("healthy", "quarantined", "unfit").index(self.state)),
            "gpu_quarantines": float(self.quarantines),
            "gpu_probes_passed": float(self.probes_passed),
            "gpu_probes_failed": float(self.probes_failed),
            "gpu_ghosts": float(self.ghosts),
            "gpu_again": float(self.again),
            "gpu_leaked_mb": float(self.leaked_mb),
            "gpu_last_probe_s": self.probe_s[-1] if self.probe_s else 0.0,
            "gpu_recovery_s_last": self.recovery_s[-1] if self.recovery_s else 0.0,
            "gpu_recovery_s_max": max(self.recovery_s, default=0.0),
        }
        return numbers | {f"gpu_fault_{category}": float(count) for category, count in self.faults.items()}


def read_gauges(gauges: dict[str, float]) -> dict[str, Any] | None:
    """What a beat says of its evaluator's GPU, for people: None where there is none."""
    if "gpu_state" not in gauges:
        return None
    count = {name.removeprefix("gpu_"): number for name, number in gauges.items() if name.startswith("gpu_")}
    faults = {name.removeprefix("fault_"): int(count.pop(name)) for name in sorted(count) if name.startswith("fault_")}
    state = ("healthy", "quarantined", "unfit")[min(2, max(0, int(count.pop("state"))))]
    seconds = {name: number for name, number in count.items() if name.endswith("_s") or "_s_" in name}
    return {
        "state": state,
        "faults": faults,
        **{name: int(number) for name, number in count.items() if name not in seconds},
        **seconds,
    }


_MEMORY = re.compile(r"(Tried to allocate|total capacity of|this process has) ([\d.]+) (KiB|MiB|GiB|TiB)")
_UNITS = {"KiB": 2**-10, "MiB": 1.0, "GiB": 2.0**10, "TiB": 2.0**20}


def own_doing(out_of_memory: str) -> bool:
    """Whether PyTorch's out-of-memory text shows that the process would not have had room on an empty GPU either."""
    found = {what: float(number) * _UNITS[unit] for what, number, unit in _MEMORY.findall(out_of_memory)}
    asked, capacity = found.get("Tried to allocate"), found.get("total capacity of")
    return asked is not None and capacity is not None and asked + found.get("this process has", 0.0) > 0.97 * capacity


def short_of_memory(text: str) -> bool:
    """Whether an error of PyTorch or of the driver says that the GPU's memory was full."""
    return re.search("out[ _]of[ _]memory", text, re.IGNORECASE) is not None


def fault_of(verdict: Verdict) -> str:
    """The category of `FAULTS` that a candidate's verdict stands for; empty for none."""
    if verdict.kind == "infra":
        if "did not end its child" in verdict.feedback:
            return "unkillable"
        return "parent_error" if "CUDA error" in verdict.feedback or LOST in verdict.feedback else ""
    if verdict.tier != "gpu" or verdict.kind != "fail":
        return ""
    named = {"out_of_bounds": "illegal_access", "timeout": "endless", "memory": "out_of_memory", "crash": "crash"}
    if verdict.category in named:
        return named[verdict.category]
    return "device_error" if "CUDA error" in verdict.feedback or "cuda error" in verdict.feedback.lower() else ""


def spoilable(verdict: Verdict) -> bool:
    """Whether the GPU had any part in this verdict: not in what the source alone, or a compiler, decided."""
    return verdict.kind in ("pass", "fail") and verdict.tier == "gpu" and verdict.stage not in ("static", "compile")


IN_DOUBT = "the GPU itself was in doubt"


def doubtful(verdict: Verdict, *, company: bool, endless: bool, grave: bool, alone: bool) -> str:
    """Why somebody else's trouble on the GPU may be in this verdict; empty where it is the candidate's own.

    Args:
        company: others used the GPU's memory meanwhile.
        endless: another's candidate had to be stopped meanwhile.
        grave: a grave fault was seen meanwhile.
        alone: our other workers were kept away.
    """
    if verdict.kind == "infra":
        return "others held memory of the GPU" if company and short_of_memory(verdict.feedback) else ""
    if verdict.kind == "unsupported":
        return "others held memory of the GPU" if company and TOO_LARGE in verdict.feedback else ""
    if not spoilable(verdict):
        return ""
    if grave:
        return IN_DOUBT
    if verdict.kind == "pass":
        return "another candidate's endless kernel ran" if endless and verdict.speed_kind == "measured" else ""
    if verdict.category == "timeout" and endless:
        return "another candidate's endless kernel ran"
    if verdict.category == "tampering" and RAN_ON in verdict.feedback and not alone:
        return "the GPU may have come to rest by chance when its process was ended"
    if verdict.category == "memory" and company and not own_doing(verdict.feedback):
        return "others held memory of the GPU"
    return ""
