"""What a candidate's executor told, as data: the frames of one outcome, sorted.

The executor runs no code of the candidate's, so its counts are believed; texts and lines of errors come from the host
and only choose words.
"""

from typing import Any

import msgspec

from core.evaluation.cuda_source import Extension
from core.evaluation.kernel_source import KernelDefinition, Launch
from core.evaluation.spawn import Outcome


class DrawFrame(msgspec.Struct, kw_only=True):
    draw: int
    tree: Any = None
    changed_inputs: list[int] = []
    changed_state: list[str] = []
    launches: int = 0
    empty: str = ""
    """A launch whose grid had no programs, in words."""
    operators: dict[str, list[int]] = {}
    scalars_read: int = 0


class ErrorFrame(msgspec.Struct, kw_only=True):
    type: str
    message: str
    line: int
    code: str
    phase: str
    in_kernel: bool = False
    launched: bool = False
    kernel: str = ""
    memory: bool = False


class KernelFrame(msgspec.Struct, kw_only=True):
    key: str
    name: str
    line: int
    launches: int
    programs: int
    sector_bytes: int
    traffic_bytes: int
    flops: int
    dot_flops: int


class TraceFrame(msgspec.Struct, kw_only=True):
    kernels: list[KernelFrame]
    reused: list[int]
    changed: list[int] = []
    """Draws whose output was another one when they were called again."""


class Report(msgspec.Struct, kw_only=True):
    """The frames, sorted."""

    phase: str = "start"
    draws: dict[int, tuple[DrawFrame, bytes]] = {}
    error: ErrorFrame | None = None
    trace: TraceFrame | None = None
    ghost: tuple[Any, bytes] | None = None
    configurations: list[tuple[int, int, Any, bytes]] = []
    """Calls with another configuration of the autotuner: which, of which draw, tree and bytes of the output."""
    host_ended: int | None = None
    """How the host ended, when it went without a word: exit status, or minus the signal."""
    host_out_of_time: bool = False
    """It was the limit on processor time that ended the host."""
    forged: str = ""
    definitions: dict[str, KernelDefinition] = {}
    extensions: list[Extension] = []
    """CUDA C++ that the candidate wants built."""
    launches: list[Launch] = []
    """Different launches that were reached, and the kernels they are of."""

    @property
    def launched(self) -> bool:
        """Whether a kernel launch was reached."""
        counted = any(frame.launches > 0 for frame, _ in self.draws.values())
        return counted or bool(self.error and self.error.launched)


def read(outcome: Outcome) -> Report:
    """Sort the frames; raises msgspec.ValidationError or ValueError on what no executor of ours sends."""
    report = Report(draws={})
    for header, blob in outcome.frames:
        if "definitions" in header:
            report.definitions = msgspec.convert(header["definitions"], dict[str, KernelDefinition])
            report.extensions = msgspec.convert(header["extensions"], list[Extension])
            report.launches = msgspec.convert(header["launches"], list[Launch])
        if "phase" in header:
            report.phase = str(header["phase"])
        elif "error" in header:
            report.error = msgspec.convert(header["error"], ErrorFrame)
        elif "trace" in header:
            report.trace = msgspec.convert(header["trace"], TraceFrame)
        elif "ghost" in header:
            report.ghost = (header["ghost"], blob)
        elif "configuration" in header:
            number, draw = int(header["configuration"]), int(header["of_draw"])
            report.configurations.append((number, draw, header["tree"], blob))
        elif "host_ended" in header:
            report.host_ended = int(header["host_ended"])
            report.host_out_of_time = bool(header.get("host_out_of_time"))
        elif "forged" in header:
            report.forged = str(header["forged"])
        elif "draw" in header:
            frame = msgspec.convert(header, DrawFrame)
            if frame.draw in report.draws:
                raise ValueError(f"two outputs for draw {frame.draw}")
            report.draws[frame.draw] = (frame, blob)
        else:
            raise ValueError(f"unknown frame {sorted(header)}")
    return report
