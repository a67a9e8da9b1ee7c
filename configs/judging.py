"""The tables about judging (docs/judging-on-gpus.md, docs/gateway.md); `configs.schema` is the whole."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.section import Section
from core.evaluation.settings import MAX_DRAWS, MAX_WALL_S, MIN_WALL_S, identity, parse_target


class Judge(Section):
    device_class: str = Field(
        default="cpu", pattern=r"^[a-z0-9_]+$", json_schema_extra={"wanted": "some of a-z, 0-9 and '_'"}
    )
    """`cpu`, or the GPU type that judges this run, a part of its name in small letters (`h100`; `gpu` takes any):
    verdicts of other hardware can't reach its rewards."""
    workers: int = Field(default=2, ge=1)
    """Candidates that one evaluator judges at once."""
    cards: tuple[int, ...] = ()
    """Cards of this machine that evaluators judge on: an evaluator's workers take them in turn, and each evaluator goes
    on where the one before it, by the number that ends its name, stopped. Empty: whatever the process sees. The learner
    takes the first ones, `rollout.cards` are the generators'."""
    profile: Literal["cpu", "small", "full"] = "cpu"
    """Sizes used for correctness."""
    draws: int = Field(default=3, ge=2, le=MAX_DRAWS)
    """Input draws per candidate: fresh secret seeds, several distributions and scales."""
    target: str = ""
    """Cross-compile for this GPU as well, e.g. `cuda:90` or `hip:gfx942`; empty skips the stage."""
    speed: Literal["none", "modelled", "measured"] = "modelled"
    wall_s: float = Field(default=20.0, ge=MIN_WALL_S, lt=MAX_WALL_S)
    """Time for one candidate, imports apart."""
    compile_wall_s: float = Field(default=20.0, ge=MIN_WALL_S, lt=MAX_WALL_S)
    memory_mb: int = Field(default=2048, ge=256)
    output_kb: int = Field(default=64, ge=1)
    """What a candidate may print before it is cut off."""
    isolation: Literal["auto", "namespaces", "basic"] = "auto"
    """auto takes the strongest level that this machine allows; `namespaces` refuses to judge without it."""
    retries: int = Field(default=2, ge=0)
    """Tries again after trouble on our side, before the verdict is `infra`."""
    gpu_profile: Literal["small", "full"] = "full"
    """Sizes that the GPU tier judges and times, after the CPU tier."""
    gpu_wall_s: float = Field(default=60.0, ge=MIN_WALL_S, lt=MAX_WALL_S)
    """Time for one candidate on the GPU, compilation and everything."""
    gpu_memory_mb: int = Field(default=16384, ge=1024)
    """Host memory of a candidate's process that holds a GPU."""
    baseline: Literal["eager", "compile", "max-autotune"] = "eager"
    """What a measured speedup is over."""
    baselines: tuple[Literal["eager", "compile", "max-autotune"], ...] = ("eager",)
    """Which are told beside it; the compiled ones are measured once for each task and GPU and remembered on disk."""
    profile_lines: bool = False
    """Tell the policy its kernels and eager's with their shares of the time."""
    counters: bool = False
    """Tell it hardware counters of its heaviest kernel too, where `ncu` is found and they may be read; some ten seconds
    for each right candidate."""
    cache: bool = True
    """Answer from a verdict that stands for the same key."""

    @model_validator(mode="after")
    def _target_is_known(self) -> "Judge":
        if self.target:
            parse_target(self.target)
        return self

    @model_validator(mode="after")
    def _cards_fit(self) -> "Judge":
        if len(set(self.cards)) < len(self.cards) or any(card < 0 for card in self.cards):
            raise ValueError(f"cards = {list(self.cards)}: a card is named twice, or is no number from 0 on")
        if self.cards and self.device_class == "cpu":
            raise ValueError(f"cards = {list(self.cards)} are to judge on, but device_class = 'cpu' judges on none")
        return self

    def cards_of(self, name: str) -> tuple[int, ...]:
        """The cards of the evaluator of that name (`evaluator-1`), at most one for each of its workers."""
        if not self.cards:
            return ()
        tail = name.rpartition("-")[2]
        first = (int(tail) if tail.isdigit() else 0) * self.workers % len(self.cards)
        return (self.cards[first:] + self.cards[:first])[: self.workers]

    def identity(self) -> dict[str, Any]:
        """The settings that can change a verdict; they are part of every candidate key."""
        return identity(self)


class Gateway(Section):
    """`kernelmill run gateway`: the eval server's HTTP API in front of this run's evaluators (docs/gateway.md)."""

    host: str = "127.0.0.1"
    """Beyond loopback a token is needed: KERNELMILL_GATEWAY_TOKEN in the environment."""
    port: int = Field(default=18188, ge=0, le=65535)
    """0 takes a free one, which the log names."""
    places: int = Field(default=1024, ge=1)
    """Requests that may be in hand; one more is answered with 503."""
    verdict_timeout_s: float = Field(default=0.0, ge=0)
    """A verdict that takes longer is answered with 503; the judging goes on. 0: as long as an evaluator may take for
    one, which follows from the judge's settings (`core.evaluation.waits`)."""
    max_request_kb: int = Field(default=1024, ge=1, le=4096)
    """Largest body of one request; a batch may have 4 times as much."""
    max_faults: int = Field(default=10, ge=1)
    """The threshold that /fault_statistics names; nothing else depends on it."""
    modelled_runtime: bool = False
    """Give modelled times as `runtime` too; off, clients get -1.0 where nothing was measured."""
