"""What one judge is told: the settings that a run's config calls `judge`, as plain data without torch.

`core` imports no configs, so the fields mirror `configs.schema.Judge` by name; an actor makes one with
`JudgeSettings(**{name: getattr(section, name) for name in JudgeSettings.__struct_fields__})`.
"""

import re
from typing import Any, Literal

import msgspec

Isolation = Literal["auto", "namespaces", "basic"]
Baseline = Literal["eager", "compile", "max-autotune"]
MAX_DRAWS = 64
MIN_WALL_S = 1.0
"""In less no right kernel ends either, and the policy would be told of a loop that does not end."""
MAX_WALL_S = 1e6


class JudgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Read by the trusted side only; the candidate's process gets the limits that follow from it, not the settings."""

    device_class: str = "cpu"
    """`cpu`, or the GPU type that judges: a part of its name in small letters (`h100`), `gpu` for any."""
    profile: Literal["cpu", "small", "full"] = "cpu"
    """Sizes used for correctness."""
    draws: int = 3
    """Input draws per candidate, each with secret values of its own; 2 to MAX_DRAWS."""
    target: str = ""
    """Cross-compile for this GPU as well, e.g. `cuda:90` or `hip:gfx942`; empty skips the stage."""
    speed: Literal["none", "modelled", "measured"] = "modelled"
    wall_s: float = 20.0
    """Time for one candidate, imports apart."""
    compile_wall_s: float = 20.0
    memory_mb: int = 2048
    """Address space that a candidate may add to what the interpreter already has."""
    output_kb: int = 64
    """What a candidate may print before it is cut off."""
    isolation: Isolation = "auto"
    retries: int = 2
    """Tries again after trouble on our side, before the verdict is `infra`."""
    gpu_profile: Literal["small", "full"] = "full"
    """Sizes that the GPU tier judges and times."""
    gpu_wall_s: float = 60.0
    """Time for one candidate on the GPU, compilation and everything."""
    gpu_memory_mb: int = 16384
    """Host memory of a candidate's process that holds a GPU."""
    baseline: Baseline = "eager"
    """What a measured speedup is over."""
    baselines: tuple[Baseline, ...] = ("eager",)
    """Which are told beside it; the compiled ones are measured once for each task and GPU and remembered on disk."""
    profile_lines: bool = False
    """Tell the policy its kernels and eager's with their shares of the time."""
    counters: bool = False
    """Tell it hardware counters of its heaviest kernel too, where `ncu` is found and they may be read; some ten seconds
    for each right candidate."""

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ValueError(f"draws = {self.draws}: at least 2, or an answer remembered from the first can't be seen")
        if self.draws > MAX_DRAWS:
            raise ValueError(f"draws = {self.draws}: at most {MAX_DRAWS}, all of a candidate's are in memory at once")
        for name in ("wall_s", "compile_wall_s", "gpu_wall_s"):
            if not MIN_WALL_S <= (value := getattr(self, name)) < MAX_WALL_S:
                raise ValueError(f"{name} = {value}: wanted seconds, {MIN_WALL_S:.0f} to {MAX_WALL_S:.0f}")
        if self.speed == "measured" and not self.on_gpu:
            raise ValueError("speed = 'measured' needs a GPU: set device_class (h100, or gpu), or speed = 'modelled'")
        if self.speed == "modelled" and self.on_gpu:
            raise ValueError(
                f"device_class = {self.device_class!r} measures: set speed = 'measured', or 'none' for no times"
            )
        if self.target:
            parse_target(self.target)

    @property
    def on_gpu(self) -> bool:
        """Whether the GPU tier follows the CPU tier."""
        return self.device_class != "cpu"

    def identity(self) -> dict[str, Any]:
        """The settings that can change a verdict; they are part of every candidate key."""
        return identity(self)


_IDENTITY = ("profile", "draws", "target", "speed", "wall_s", "compile_wall_s", "memory_mb", "output_kb")
_GPU_IDENTITY = ("gpu_profile", "gpu_wall_s", "gpu_memory_mb", "baseline", "baselines", "profile_lines", "counters")


def identity(settings: Any) -> dict[str, Any]:
    """What of `settings` (these, or a config's section of the same fields) can change a verdict; plain JSON, in which
    actors compare it."""
    names = _IDENTITY + (_GPU_IDENTITY if settings.device_class != "cpu" else ())
    values = {name: getattr(settings, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


CUDA_ARCHITECTURES = (70, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""Compute capabilities, times ten, that kernels are cross-compiled for: what an assembler would refuse later, as if the
kernel were at fault, is refused here."""
_HIP_ARCHITECTURE = re.compile(r"gfx(9[0-9a-f]{2}|1[0-9]{3})")


def parse_target(target: str) -> tuple[str, int | str, int]:
    """`cuda:90` as ("cuda", 90, 32), `hip:gfx942` as ("hip", "gfx942", 64): backend, architecture, lanes of a warp."""
    backend, _, arch = target.partition(":")
    if backend == "cuda" and arch.isdecimal() and int(arch) in CUDA_ARCHITECTURES:
        return "cuda", int(arch), 32
    if backend == "hip" and _HIP_ARCHITECTURE.fullmatch(arch):
        return "hip", arch, 64 if arch.startswith("gfx9") else 32
    known = ", ".join(map(str, CUDA_ARCHITECTURES))
    raise ValueError(
        f"target {target!r}: wanted cuda:<compute capability> (cuda:90; of {known}) or hip:<gfx name> (hip:gfx942)"
    )
