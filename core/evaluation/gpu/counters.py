"""Hardware counters of a candidate's heaviest kernel by Nsight Compute (`ncu`), as lines for feedback. Trusted side.

    counters = Counters()
    lines = counters.lines(zygote, limits, task, source, backend)     "" with one line in the log where there are none

Taken after the clocks and in a fresh child inside the walls, so that no timed process ever has a profiler in it: the
child starts ncu, ncu starts a Python that makes the task's own inputs, calls forward twice unseen and once counted.
What it says decides nothing. Counters may be the administrator's (the driver's RmProfilingAdminOnly), ncu absent, or
refused by the walls; why is said once for each process, and after some failures in a row no more are tried. `parse`
reads what `ncu --csv --page raw` prints: a row of names, a row of units, a row for each launch.
"""

import csv
import glob
import io
import logging
import os
import re
import shutil
from typing import Any

import msgspec

from core.evaluation import import_path
from core.evaluation.findings import printable
from core.evaluation.gpu import work as gpu_work
from core.evaluation.gpu.lease import first_call
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.walls import sandbox

TIME = "gpu__time_duration.sum"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS = "launch__registers_per_thread"
LOCAL = ("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum")
"""Loads and stores of local memory: registers that were spilled, or arrays that found no place in them."""
METRICS = (TIME, DRAM, SM, OCCUPANCY, REGISTERS, *LOCAL)
MOST_LAUNCHES = 16
WALL_S = 60.0
FAILURES = 3
"""In a row, until no more is tried: on some machines ncu hangs, and each verdict would wait for its whole time."""
_PARAMETERS = "/proc/driver/nvidia/params"
_INSTALLED = "/opt/nvidia/nsight-compute/*/ncu"
_log = logging.getLogger(__name__)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One counted launch; shares in percent of the hardware's peak, NaN where ncu gave none."""

    kernel: str
    ns: float
    dram: float
    sm: float
    occupancy: float
    registers: float
    local: float
    """Warp instructions on local memory."""


class NoCountersError(Exception):
    """Nothing could be counted; one line says why."""


def find_ncu() -> str:
    """The newest ncu of this machine; empty without one."""
    found = sorted(glob.glob(_INSTALLED), key=lambda path: [int(part) for part in re.findall(r"\d+", path)])
    return shutil.which("ncu") or (found[-1] if found else "")


def forbidden(parameters: str) -> str:
    """Why the driver keeps counters from candidates' processes, by the text of its parameters; empty: it does not.

    Children have a user id of their own and no capabilities, whoever we are.
    """
    if re.search(r"^RmProfilingAdminOnly:\s*1\b", parameters, re.MULTILINE):
        return (
            "counters are the administrator's here (the driver's RmProfilingAdminOnly is 1, and candidates have a user "
            "of their own): load it with NVreg_RestrictProfilingToAdminUsers=0"
        )
    return ""


def command(ncu: str, names: list[str], script: list[str]) -> list[str]:
    """How to count the launches of these kernels between the script's profiler marks."""
    pattern = "regex:^(" + "|".join(map(re.escape, names)) + ")$"
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function",
        "--kernel-name-base", "function", "--kernel-name", pattern, "--launch-count", str(MOST_LAUNCHES),
        "--profile-from-start", "off", "--metrics", ",".join(METRICS), *script,
    ]  # fmt: skip


def parse(text: str) -> list[Launch]:
    """All launches of ncu's CSV; lines before and after it (==PROF==, the program's own) are left out.

    Raises NoCountersError where there is none.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    head = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    if head is None:
        raise NoCountersError(_why(text))
    rows = list(csv.reader(io.StringIO("\n".join(lines[head:]))))
    names, found = rows[0], []
    missing = [name for name in ("Kernel Name", TIME) if name not in names]
    if missing:
        raise NoCountersError(f"ncu printed no column {missing[0]}")
    for row in rows[1:]:
        values = dict(zip(names, row, strict=False))
        if len(row) == len(names) and values["ID"].isdigit():  # the row of units has no ID
            found.append(_launch(values))
    if not found:
        raise NoCountersError("ncu saw no launch of a kernel that the source defines")
    return found


def _launch(values: dict[str, str]) -> Launch:
    return Launch(
        kernel=values["Kernel Name"], ns=_number(values.get(TIME)), dram=_number(values.get(DRAM)),
        sm=_number(values.get(SM)), occupancy=_number(values.get(OCCUPANCY)),
        registers=_number(values.get(REGISTERS)), local=sum(_number(values.get(name)) for name in LOCAL),
    )  # fmt: skip


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:  # n/a, or an unknown metric
        return float("nan")


def _why(text: str) -> str:
    if "ERR_NVGPUCTRPERM" in text:
        return "counters are not permitted to candidates' processes (ERR_NVGPUCTRPERM)"
    said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    said = said or [line for line in text.splitlines() if line.strip()][-1:]
    return f"ncu counted nothing: {printable(said[0])[:200] if said else 'it said nothing'}"


def heaviest(launches: list[Launch]) -> Launch:
    """Of the kernel that takes most time in all its launches, the longest."""
    total: dict[str, float] = {}
    for one in launches:
        total[one.kernel] = total.get(one.kernel, 0.0) + (one.ns if one.ns == one.ns else 0.0)
    kernel = max(total, key=lambda name: total[name])
    return max((one for one in launches if one.kernel == kernel), key=lambda one: one.ns if one.ns == one.ns else 0.0)


def worded(launch: Launch) -> str:
    """Two lines for feedback; what was not counted is left out."""

    def told(value: float, text: str) -> list[str]:
        return [text.format(value)] if value == value else []

    name = printable(launch.kernel)[:48]
    shares = told(launch.dram, "memory {:.0f} %") + told(launch.sm, "SM {:.0f} %")
    rest = told(launch.occupancy, "occupancy {:.0f} %") + told(launch.registers, "{:.0f} registers a thread")
    if launch.local == launch.local:
        rest.append(f"{launch.local:,.0f} spill instructions" if launch.local else "no spills")
    first = f"counters: your {name}, {launch.ns / 1e3:,.1f} us: {', '.join(shares)} of peak" if shares else ""
    return "\n".join(part for part in (first, f"counters: {', '.join(rest)}" if rest else "") if part)


class Counters:
    """Of one stage."""

    def __init__(self, ncu: str | None = None, device: str = "cuda:0") -> None:
        self._ncu = find_ncu() if ncu is None else ncu
        self._device = device
        self._told: set[str] = set()
        self._failed = 0

    def lines(
        self, zygote: GpuZygote, limits: sandbox.Limits, task_source: str, profile: str, source: str, backend: str
    ) -> str:
        """`zygote` has no child before and none after. Raises ZygoteError."""
        if self._failed >= FAILURES:
            return ""
        try:
            names = self._names(source, backend)
            launches = self._counted(zygote, limits, names, task_source, profile, source)
        except NoCountersError as error:
            self._tell(str(error))
            if self._failed >= FAILURES:
                self._tell(f"ncu failed {FAILURES} times in a row, so it is not started any more")
            return ""
        return worded(heaviest(launches))

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            _log.warning("no hardware counters in feedback: %s", why)

    def _names(self, source: str, backend: str) -> list[str]:
        """Of the kernels to count. Raises NoCountersError where there is nothing to start."""
        if not self._ncu:
            raise NoCountersError("ncu is not found: install Nsight Compute")
        if backend != "triton":
            raise NoCountersError("only Triton's kernels are counted")
        if os.path.exists(_PARAMETERS) and self._device != "cpu":
            with open(_PARAMETERS) as file:
                if reason := forbidden(file.read()):
                    raise NoCountersError(reason)
        names = gpu_work.Names(source, backend).triton
        if not names:
            raise NoCountersError("the source defines no kernel")
        return names

    def _counted(
        self, zygote: GpuZygote, limits: sandbox.Limits, names: list[str], task_source: str, profile: str, source: str
    ) -> list[Launch]:
        script = import_path.script()
        self._failed += 1
        zygote.begin(msgspec.structs.replace(limits, wall_s=WALL_S))
        try:
            with first_call(self._device):
                answer = zygote.ask("counters", command(self._ncu, names, script), task_source, profile, source)
        except ChildFailed as failure:
            raise NoCountersError(f"the process that counts failed: {failure}"[:200]) from None
        finally:
            if zygote.running:
                zygote.end()
        launches = parse(_text(answer))
        self._failed = 0
        return launches


def _text(answer: Any) -> str:
    return answer if isinstance(answer, str) else ""
