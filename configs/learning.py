"""The tables about the learner (docs/learner.md, docs/algorithms.md); `configs.schema` is the whole."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.section import Section
from core.training.combinations import impossible

Beta = Annotated[float, Field(ge=0, lt=1)]
"""How much of its past a moment of AdamW keeps."""


class Correction(Section):
    """One off-policy correction of the learner and its bounds on the ratio p/μ; docs/algorithms.md has them all."""

    name: Literal[
        "token_tis", "icepop", "token_mask", "sequence_tis", "sequence_mask", "token_veto", "off_policy_sequence_mask"
    ]
    low: float | None = None
    high: float | None = None
    """For off_policy_sequence_mask: nats."""
    aggregate: Literal["geometric", "product"] = "geometric"
    """Of sequence_mask."""


class Learner(Section):
    """docs/algorithms.md has the settings of every recipe that the field has a name for."""

    ranks: int = Field(default=1, ge=1)
    """Processes of the learner, one GPU each (or gloo on the CPU)."""
    collective_timeout_s: float = Field(default=600.0, gt=0)
    """A rank at work waits so long for another one in a collective; then it is an error, and the learner ends."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lr: float = Field(default=1e-6, gt=0, le=1)
    """AdamW's: about the size of a weight's change in a step."""
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)

    objective: Literal["ppo_clip", "gspo", "cispo", "dppo", "policy_gradient", "decoupled_ppo"] = "ppo_clip"
    advantage: Literal["turn", "group", "reinforce_plus_plus", "gae"] = "turn"
    """turn: compared within (group, turn, role). group: within (group, role), all turns together.
    reinforce_plus_plus: return-to-go of every token. gae: of every token, with a critic."""
    baseline: Literal["leave_one_out", "mean", "maxrl", "none"] = "leave_one_out"
    scale: Literal["none", "group", "batch"] = "none"
    """What the advantage is divided by: the standard deviation of its group's returns, or of the whole batch's
    (reinforce_plus_plus and gae: whitened over the batch's tokens)."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.28, gt=0)
    """With objective = "dppo" both are bounds on the probability, not on the ratio."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound on the loss of a token with a negative advantage, as a multiple of it; absent: none."""
    proximal: Literal["recompute", "behaviour", "loglinear"] = "recompute"
    """The policy that the clip is around: the current one before the update (then corrections lead to it from the one
    that sampled), the one that sampled (then the ratio itself is the correction), or the version before the current
    one, interpolated from each token's version without a forward pass."""
    tis_cap: float = Field(default=2.0, gt=0)
    """Importance weights are cut here: those of token TIS where `corrections` is absent, and those of the objectives
    policy_gradient and decoupled_ppo."""
    corrections: tuple[Correction, ...] | None = None
    """Absent: token_tis at tis_cap, where the objective's own ratio isn't over the policy that sampled; []: none."""
    kl_coef: float = Field(default=0.01, ge=0)
    """Against the starting policy; 0 keeps no reference copy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    kl_ratio_weighted: bool = False
    """In the loss: times π/μ, which makes it unbiased on samples of an older policy."""
    kl_ceiling: float | None = Field(default=None, gt=0)
    """Largest size of a token's estimate; absent: no bound."""
    entropy_coef: float = Field(default=0.001, ge=0)
    denominator: Literal["token", "sequence", "constant", "rollout"] = "token"
    """The global number that the loss is divided by."""
    overlong_buffer_tokens: int = Field(default=0, ge=0)
    """The last so many tokens before rollout.max_new_tokens cost up to overlong_factor, linearly."""
    overlong_factor: float = Field(default=1.0, ge=0)
    overlong_filter: bool = False
    """Samples that were cut off at the token limit are not trained on and are in nobody's baseline."""
    dynamic_sampling: bool = False
    """Groups whose returns are all equal are rejected, and others admitted in their place."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    token_gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from token to token, for gae and reinforce_plus_plus; turns are discounted by episodes.gamma."""
    critic_lr: float = Field(default=1e-5, gt=0, le=1)
    value_clip: float = Field(default=0.2, gt=0)

    max_tokens_per_rank: int = Field(default=16384, ge=64)
    """Samples are packed into micro-batches of so many tokens. A longer sample has one to itself, so memory must do for
    model.context_tokens."""
    pack_multiple: int = Field(default=0, ge=0)
    """Packed rows are filled up to a multiple of so many tokens; 0: no filling."""
    activation_checkpointing: bool | Literal["none", "selective", "attention", "full"] = False
    """What is computed again in the backward pass; true is full."""
    compile: bool | None = None
    """Compile each block; unset: on a GPU, from a hidden size of 512 on."""
    join_products: bool = True
    """Products of one input (q, k, v; gate, up) are one product."""
    attention: Literal["auto", "varlen", "cudnn", "fa3", "fa4", "written"] = "auto"
    """On CUDA in half precision; docs/learner.md."""
    head: Literal["auto", "fused", "recompute"] = "auto"
    """auto: fused where the loss is a sum over tokens."""
    head_chunk_tokens: int = Field(default=2048, ge=1)
    """Rows of logits that exist at once."""
    head_cache_gib: float = Field(default=0.0, ge=0)
    """Above 0 the head is "recompute" and keeps logits of so many GiB for the backward pass."""
    context_parallel: bool = False
    """A sample longer than `max_tokens_per_rank` lies on all ranks together."""
    shard: Literal["auto", "always"] = "auto"
    """always: FSDP2 on one rank too."""
    cpu_offload: bool = False
    """Masters, gradients and optimizer live in the memory of the CPU."""
    lora_rank: int = Field(default=0, ge=0)
    """Above 0: train low-rank adapters of this rank and leave the policy itself as it is."""
    lora_alpha: float = Field(default=32.0, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    quantize: Literal["none", "nf4"] = "none"
    """nf4: the policy under the adapters in 4 bits (needs bitsandbytes)."""
    threads: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _goes_together(self) -> "Learner":
        if why := impossible(self):
            raise ValueError(why)
        return self
