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
    activation_checkpointing: bool | Literal["none", "selective", "attention", "full"] = False
    """What is computed again in the backward pass (`core.training.recompute`); true is `full`, false `none`."""
    compile: bool = False
    threads: int = 0

    attention: Literal["auto", "varlen", "cudnn", "fa3", "fa4", "written"] = "auto"
    """On CUDA in half precision (`core.training.flash`)."""
    head: Literal["fused", "recompute"] = "fused"
    """fused: gradients of the head are made with its log-probs; recompute: logits are made again in the backward pass,
    which a loss that is not a sum over tokens needs."""
    head_chunk_tokens: int = 2048
    """Rows of logits that exist at once."""
    head_cache_gib: float = 0.0
    """With head = "recompute": logits of so many GiB are kept for the backward pass."""
    pack_multiple: int = 0
    """Packed rows are filled up to a multiple of so many tokens, and blocks compiled for these sizes alone; 0: no
    filling, and compiled blocks take any size after the second one they meet."""
    shard: Literal["auto", "always"] = "auto"
    """always: FSDP2 on one rank too, instead of plain masters (`core.training.masters`)."""
    cpu_offload: bool = False
    """Masters, gradients and optimizer live in the memory of the CPU."""
    lora_rank: int = 0
    """Above 0: train low-rank adapters of this rank (peft) and leave the policy itself as it is."""
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    quantize: Literal["none", "nf4"] = "none"
    """nf4: the policy under the adapters in 4 bits (bitsandbytes; QLoRA)."""

    critic: bool = False
    """PPO: advantages come from a value model (`core.training.critic`) instead of the group's other members."""
    critic_lr: float = 1e-5
    value_clip: float = 0.2
    gae_lambda: float = 0.95
    token_gamma: float = 1.0
    """Discount from token to token, for the critic; turns are discounted in the samples' returns already."""

    @property
    def checkpoint_level(self) -> Literal["none", "selective", "attention", "full"]:
        level = self.activation_checkpointing
        return level if isinstance(level, str) else ("full" if level else "none")

    @property
    def sharded(self) -> bool:
        """True when the model is under FSDP2, which needs a process group."""
        return self.ranks > 1 or self.cpu_offload or self.shard == "always"

    def __post_init__(self) -> None:
        if self.quantize != "none" and not self.lora_rank:
            raise ValueError(f"quantize = {self.quantize!r} trains adapters alone: set lora_rank")
        if self.quantize != "none" and self.sharded:
            raise ValueError(f"quantize = {self.quantize!r} works on one rank without cpu_offload or shard = 'always'")
        if self.head_cache_gib and self.head == "fused":
            raise ValueError("head_cache_gib keeps logits for head = 'recompute'; head = 'fused' needs none")
        if self.lora_rank < 0 or self.head_chunk_tokens < 1 or self.pack_multiple < 0 or self.head_cache_gib < 0:
            raise ValueError(
                f"lora_rank {self.lora_rank}, pack_multiple {self.pack_multiple} and head_cache_gib "
                f"{self.head_cache_gib} must be at least 0, head_chunk_tokens {self.head_chunk_tokens} at least 1"
            )
        if self.pack_multiple and self.max_tokens_per_rank % self.pack_multiple:
            raise ValueError(
                f"pack_multiple = {self.pack_multiple} must divide max_tokens_per_rank = {self.max_tokens_per_rank}"
            )
        if self.denominator == "constant" and self.constant_tokens < 1:
            raise ValueError("denominator = 'constant' needs constant_tokens, the tokens that a sample may generate")
        if self.schedule != "constant" and self.schedule_steps <= self.warmup_steps:
            raise ValueError(
                f"schedule = {self.schedule!r} ends at schedule_steps = {self.schedule_steps}, which must be beyond "
                f"warmup_steps = {self.warmup_steps}"
            )
