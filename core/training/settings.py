"""What a trainer needs to know; mirrors `[learner]` of the run's config, which core may not import.

TrainerSettings(model="policies/tiny", dtype="float32", seed=0, **config.learner.model_dump())
"""

from typing import Literal

import msgspec


class TrainerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the same name mean the same as in the config; figures are checked there."""

    model: str
    """Folder (or hub name) of the policy to start from. It is also the reference that `kl_coef` holds the policy to."""
    revision: str = ""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Compute type, and the type of published weights; master weights and optimizer are float32."""
    seed: int = 0
    constant_tokens: int = 0
    """Generation budget of a sample, for `denominator = "constant"`."""
    schedule_steps: int = 0
    """Steps after which `linear` and `cosine` reach zero; the run's number of steps."""

    ranks: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lr: float = 1e-6
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    baseline: Literal["leave_one_out", "mean", "none"] = "leave_one_out"
    std_normalisation: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.28
    proximal: Literal["recompute", "behaviour"] = "recompute"
    tis_cap: float = 2.0
    kl_coef: float = 0.01
    entropy_coef: float = 0.001
    denominator: Literal["token", "sequence", "constant"] = "token"
    max_tokens_per_rank: int = 16384
    activation_checkpointing: bool = False
    compile: bool = False
    threads: int = 0

    def __post_init__(self) -> None:
        if self.denominator == "constant" and self.constant_tokens < 1:
            raise ValueError("denominator = 'constant' needs constant_tokens, the tokens that a sample may generate")
        if self.schedule != "constant" and self.schedule_steps <= self.warmup_steps:
            raise ValueError(
                f"schedule = {self.schedule!r} ends at schedule_steps = {self.schedule_steps}, which must be beyond "
                f"warmup_steps = {self.warmup_steps}"
            )
