"""What a trainer needs to know; mirrors `[learner]` of the run's config, which core may not import.

    TrainerSettings(model="policies/tiny", dtype="float32", seed=0, **config.learner.model_dump())

Which settings go together: `core.training.combinations`.
"""

import math
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

from core.training.combinations import impossible, whole_sequences


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """One off-policy correction (`core.algorithms.corrections`) and its bounds on the ratio."""

    name: Literal[
        "token_tis", "icepop", "token_mask", "sequence_tis", "sequence_mask", "token_veto", "off_policy_sequence_mask"
    ]
    low: float | None = None
    high: float | None = None
    """For off_policy_sequence_mask: nats."""
    aggregate: Literal["geometric", "product"] = "geometric"
    """Of sequence_mask."""


COMPILED_WIDTH = 512
"""Smaller blocks gain less than compiling them takes."""


class TrainerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the same name mean the same as in the config. Ranges are checked there; here, that names are known and
    numbers are numbers, so that nothing is trained by another rule than was asked for."""

    model: str
    """Folder (or hub name) of the policy to start from. It is also the reference that `kl_coef` holds the policy to."""
    revision: str = ""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Compute type, and the type of published weights; master weights and optimizer are float32."""
    seed: int = 0
    temperature: float = 1.0
    """`rollout.temperature`: log-probs, entropies and KL are of the distribution that was sampled from."""
    context_tokens: int = 0
    """`model.context_tokens`, prompt and completion: a longer sample is refused. 0: the model's own limit."""
    constant_tokens: int = 0
    """Tokens that a turn may generate: for `denominator = "constant"` and the overlong penalty."""
    schedule_steps: int = 0
    """Steps after which `linear` and `cosine` reach zero; the run's number of steps."""
    credit: Literal["turn", "trajectory"] = "turn"
    """`episodes.credit`. With trajectories, a rollout counts once in its group, however many samples hold it."""

    ranks: int = 1
    collective_timeout_s: float = 600.0
    """How long a rank that is at work waits for another one in a collective. Idle ranks wait without a deadline."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lr: float = 1e-6
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    objective: Literal["ppo_clip", "gspo", "cispo", "dppo", "policy_gradient", "decoupled_ppo"] = "ppo_clip"
    advantage: Literal["turn", "group", "reinforce_plus_plus", "gae"] = "turn"
    baseline: Literal["leave_one_out", "mean", "maxrl", "none"] = "leave_one_out"
    scale: Literal["none", "group", "batch"] = "none"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    proximal: Literal["recompute", "behaviour", "loglinear"] = "recompute"
    tis_cap: float = 2.0
    corrections: tuple[Correction, ...] | None = None
    kl_coef: float = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    kl_ratio_weighted: bool = False
    kl_ceiling: float | None = None
    entropy_coef: float = 0.001
    denominator: Literal["token", "sequence", "constant", "rollout"] = "token"
    overlong_buffer_tokens: int = 0
    overlong_factor: float = 1.0
    overlong_filter: bool = False
    dynamic_sampling: bool = False
    max_tokens_per_rank: int = 16384
    """Samples are packed into micro-batches of so many tokens; a longer one has a micro-batch to itself."""
    activation_checkpointing: bool | Literal["none", "selective", "attention", "full"] = False
    """What is computed again in the backward pass (`core.training.recompute`); true is `full`, false `none`."""
    compile: bool | None = None
    """Compile each block; None: on CUDA, from a hidden size of `COMPILED_WIDTH` on."""
    threads: int = 0

    attention: Literal["auto", "varlen", "cudnn", "fa3", "fa4", "written"] = "auto"
    """On CUDA in half precision (`core.training.flash`)."""
    join_products: bool = True
    """Products of one input (q, k, v; gate, up) are one product (`core.training.joined`)."""
    head: Literal["auto", "fused", "recompute"] = "auto"
    """fused: gradients of the head are made with its log-probs; recompute: logits are made again in the backward pass,
    which a loss that is not a sum over tokens needs. auto: fused wherever it can be."""
    head_chunk_tokens: int = 2048
    """Rows of logits that exist at once."""
    head_cache_gib: float = 0.0
    """Above 0, the head is "recompute" and keeps logits of so many GiB for the backward pass."""
    pack_multiple: int = 0
    """Packed rows are filled up to a multiple of so many tokens, and blocks compiled for these sizes alone; 0: no
    filling, and compiled blocks take any size after the second one they meet."""
    context_parallel: bool = False
    """A sample longer than `max_tokens_per_rank` lies on all ranks together (`core.training.context`)."""
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

    critic_lr: float = 1e-5
    value_clip: float = 0.2
    gae_lambda: float = 0.95
    token_gamma: float = 1.0
    """Discount from token to token, for gae and reinforce_plus_plus; turns are discounted in the samples' returns."""

    @property
    def corrected(self) -> tuple[Correction, ...]:
        """The corrections in effect. Without a list: token_tis at `tis_cap`, where the objective's own ratio does not
        reach back to the policy that sampled."""
        if self.corrections is not None:
            return self.corrections
        own = self.objective not in ("ppo_clip", "gspo", "cispo") or self.proximal == "behaviour"
        return () if own else (Correction(name="token_tis", high=self.tis_cap),)

    @property
    def fused_head(self) -> bool:
        if self.head != "auto":
            return self.head == "fused"
        return not self.head_cache_gib and not self.whole_sequences

    @property
    def whole_sequences(self) -> bool:
        """True when the loss is not a sum over tokens."""
        return whole_sequences(self.objective, tuple(c.name for c in self.corrected))

    @property
    def critic(self) -> bool:
        """True when there is a value model (`core.training.critic`)."""
        return self.advantage == "gae"

    @property
    def checkpoint_level(self) -> Literal["none", "selective", "attention", "full"]:
        level = self.activation_checkpointing
        return level if isinstance(level, str) else ("full" if level else "none")

    def compiled_on(self, device: str, width: int) -> bool:
        """Whether blocks of a model with hidden states of `width` are compiled on this kind of device."""
        return device == "cuda" and width >= COMPILED_WIDTH if self.compile is None else self.compile

    @property
    def sharded(self) -> bool:
        """True when the model is under FSDP2, which needs a process group."""
        return self.ranks > 1 or self.cpu_offload or self.shard == "always"

    def __post_init__(self) -> None:
        if self.corrections is not None:  # tables, as the config's model_dump has them
            made = tuple(msgspec.convert(c, Correction, from_attributes=True) for c in self.corrections)
            msgspec.structs.force_setattr(self, "corrections", made)
        _check_values(self)
        if why := impossible(self):
            raise ValueError(why)
        if self.ranks < 1:
            raise ValueError(f"ranks = {self.ranks} must be at least 1")
        if self.lora_rank < 0 or self.head_chunk_tokens < 1 or self.pack_multiple < 0 or self.head_cache_gib < 0:
            raise ValueError(
                f"lora_rank {self.lora_rank}, pack_multiple {self.pack_multiple} and head_cache_gib "
                f"{self.head_cache_gib} must be at least 0, head_chunk_tokens {self.head_chunk_tokens} at least 1"
            )
        if self.denominator == "constant" and self.constant_tokens < 1:
            raise ValueError("denominator = 'constant' needs constant_tokens, the tokens that a sample may generate")
        if not 0 <= self.overlong_buffer_tokens <= max(self.constant_tokens, 0):
            raise ValueError(
                f"overlong_buffer_tokens = {self.overlong_buffer_tokens} must lie in 0..{self.constant_tokens}, the "
                f"tokens that a turn may generate"
            )
        if self.schedule != "constant" and self.schedule_steps <= self.warmup_steps:
            raise ValueError(
                f"schedule = {self.schedule!r} ends at schedule_steps = {self.schedule_steps}, which must be beyond "
                f"warmup_steps = {self.warmup_steps}"
            )


def _check_values(settings: TrainerSettings) -> None:
    """msgspec looks at types when it decodes, not when a struct is made."""
    for name, kind in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise ValueError(f"unknown {name} {value!r}; known: {', '.join(map(str, get_args(kind)))}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} = {value} must be a finite number")
