"""What the trusted side and a zygote say to each other, and the numbers that a child is started with."""

import msgspec

from core.evaluation.walls import sandbox

JOB_FD, RESULT_FD = 3, 4
SANDBOX_FAILED = 71
"""Exit status of a child whose walls could not be built; the candidate did not start."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """First message to a zygote."""

    kind: str
    walls: sandbox.Walls
    slot: int
    folder: str
    """Empty folder, removed by the trusted side when the zygote is gone."""


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag="spawn"):
    """With three descriptors: the job's memory file, the write ends of the result pipe and of the output pipe."""

    limits: sandbox.Limits


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag="kill"):
    pass


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    packages: dict[str, str] = {}
    """`core.evaluation.import_path.loaded` of the zygote."""


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag="exited"):
    """`code` is the exit status, or minus the signal; `out_of_time`: the limit on processor time ended it."""

    code: int
    peak_mb: int
    cpu_s: float
    out_of_time: bool = False
