"""Which learner settings go together: one table of rules for the config and for the trainer, without torch.

`impossible(settings)` answers with one line that says what to do, or None. It reads attributes only, so that the
config's section and `TrainerSettings` are held to the same rules.
"""

from typing import Any

WEIGHTS = ("token_tis", "icepop", "sequence_tis")
"""Corrections that multiply by the ratio p/μ; where the objective's own ratio is π/μ they would count it twice."""
SEQUENCE_RULES = ("sequence_tis", "sequence_mask", "token_veto", "off_policy_sequence_mask")
"""Corrections that look at all tokens of a sample."""
BOUNDS = {
    "token_tis": (False, True),
    "icepop": (True, True),
    "token_mask": (True, True),
    "sequence_tis": (False, True),
    "sequence_mask": (True, True),
    "token_veto": (True, False),
    "off_policy_sequence_mask": (False, True),
}
"""Correction: whether it must be told `low` and `high`. token_tis takes `low` and token_veto `high` as well."""
_MAY_LOW, _MAY_HIGH = ("token_tis",), ("token_veto",)
PER_TOKEN = ("reinforce_plus_plus", "gae")
"""Advantages with one number per token."""


def whole_sequences(objective: str, corrections: tuple[str, ...]) -> bool:
    """True when the loss of a token depends on other tokens of its sample, so that the fused head can't make it."""
    return objective == "gspo" or any(name in SEQUENCE_RULES for name in corrections)


def impossible(s: Any) -> str | None:
    """Why these settings can't be, in one line, or None. s: anything with the fields of `[learner]`."""
    return _memory(s) or _objective(s) or _advantage(s) or _corrections(s) or _kl(s) or _head(s)


def _memory(s: Any) -> str | None:
    if s.quantize != "none" and not s.lora_rank:
        return f"quantize = {s.quantize!r} trains adapters alone: set lora_rank"
    if s.quantize != "none" and (s.ranks > 1 or s.cpu_offload or s.shard == "always"):
        return f"quantize = {s.quantize!r} works on one rank without cpu_offload or shard = 'always'"
    if s.pack_multiple and s.max_tokens_per_rank % s.pack_multiple:
        return f"pack_multiple = {s.pack_multiple} must divide max_tokens_per_rank = {s.max_tokens_per_rank}"
    if getattr(s, "context_parallel", False):
        names = tuple(c.name for c in s.corrections or ())
        if whole_sequences(s.objective, names) or s.advantage in PER_TOKEN:
            what = next((n for n in names if n in SEQUENCE_RULES), None)
            what = (
                f"correction {what!r}"
                if what
                else (f"advantage = {s.advantage!r}" if s.advantage in PER_TOKEN else f"objective = {s.objective!r}")
            )
            return f"context_parallel splits samples over ranks, {what} looks at whole ones: leave one of them out"
    return None


def _objective(s: Any) -> str | None:
    if s.dual_clip is not None and s.objective not in ("ppo_clip", "decoupled_ppo"):
        return f"dual_clip bounds ppo_clip and decoupled_ppo; objective = {s.objective!r} has none: leave it out"
    if s.dual_clip is not None and s.dual_clip <= 1.0:
        return f"dual_clip = {s.dual_clip} must be above 1"
    if s.clip_low >= 1.0 and s.objective != "cispo":
        return f"clip_low = {s.clip_low} leaves the ratio no lower bound, for objective = 'cispo' alone: use below 1"
    if s.objective == "decoupled_ppo" and s.proximal == "behaviour":
        return (
            "objective = 'decoupled_ppo' goes from the policy that sampled to a proximal one: set proximal = "
            "'recompute' or 'loglinear', or objective = 'ppo_clip'"
        )
    if s.objective in ("dppo", "policy_gradient") and s.proximal == "loglinear":
        return f"objective = {s.objective!r} knows no proximal policy: leave proximal at 'recompute'"
    return None


def _advantage(s: Any) -> str | None:
    if s.advantage == "gae" and s.baseline != "none":
        return f"advantage = 'gae' has the critic for its baseline, not {s.baseline!r}: set baseline = 'none'"
    if s.advantage in PER_TOKEN and s.scale == "group":
        return f"advantage = {s.advantage!r} has a number per token: set scale = 'batch' (whitened) or 'none'"
    if s.advantage == "reinforce_plus_plus" and s.baseline == "maxrl":
        return "advantage = 'reinforce_plus_plus' takes baseline = 'none', 'mean' or 'leave_one_out', not 'maxrl'"
    if s.baseline == "maxrl" and (s.overlong_buffer_tokens or s.kl_in == "reward"):
        return "baseline = 'maxrl' wants returns of at least 0: leave out overlong_buffer_tokens and kl_in = 'reward'"
    if s.dynamic_sampling and s.baseline == "none":
        return "dynamic_sampling drops groups whose returns are all equal: it needs a baseline other than 'none'"
    return None


def _corrections(s: Any) -> str | None:
    names = [c.name for c in s.corrections or ()]
    if twice := [name for name in names if names.count(name) > 1 and name != "sequence_mask"]:
        return f"corrections names {twice[0]!r} twice"
    masks = [c.aggregate for c in s.corrections or () if c.name == "sequence_mask"]
    if len(set(masks)) < len(masks):
        return f"corrections names 'sequence_mask' twice with aggregate = {masks[0]!r}: the narrower bounds are enough"
    for c in s.corrections or ():
        needs_low, needs_high = BOUNDS[c.name]
        for bound, value, needs, may in (
            ("low", c.low, needs_low, c.name in _MAY_LOW), ("high", c.high, needs_high, c.name in _MAY_HIGH),
        ):  # fmt: skip
            if needs and value is None:
                return f"correction {c.name!r} needs {bound}"
            if value is not None and not (needs or may):
                return f"correction {c.name!r} has no {bound}: leave it out"
            if value is not None and not 0.0 <= value < float("inf"):
                return f"correction {c.name!r}: {bound} = {value} must be a number and at least 0"
        if c.low is not None and c.high is not None and c.low > c.high:
            return f"correction {c.name!r}: low = {c.low} is above high = {c.high}"
        if c.name in ("token_tis", "sequence_tis") and c.high == 0:
            return f"correction {c.name!r}: high = 0 would weigh every token with 0"
        if c.name in WEIGHTS:
            if s.objective in ("dppo", "policy_gradient", "decoupled_ppo"):
                return f"objective = {s.objective!r} weighs by its own ratio: leave out correction {c.name!r}"
            if s.proximal == "behaviour":
                return f"proximal = 'behaviour' clips the ratio that {c.name!r} would weigh by again: leave it out"
        if c.aggregate != "geometric" and c.name != "sequence_mask":
            return f"correction {c.name!r} has no aggregate: leave it out"
    return None


def _kl(s: Any) -> str | None:
    if s.kl_in == "reward":
        if s.kl_estimator != "k1":
            return f"kl_in = 'reward' uses an estimate's value, for which k1 is right: set kl_estimator = 'k1', not " \
                   f"{s.kl_estimator!r}"  # fmt: skip
        if s.kl_ratio_weighted:
            return "kl_ratio_weighted is about the gradient of the KL in the loss: leave it out with kl_in = 'reward'"
        if s.kl_coef == 0:
            return "kl_in = 'reward' with kl_coef = 0 does nothing: set kl_coef"
        if s.dynamic_sampling:
            return "dynamic_sampling asks before the KL is known: use kl_in = 'loss' with it"
    elif s.kl_estimator == "k1" and not s.kl_ratio_weighted:
        return "kl_estimator = 'k1' in the loss has a gradient of mean zero: use 'k2' or 'k3', or kl_ratio_weighted"
    return None


def _head(s: Any) -> str | None:
    names = tuple(c.name for c in s.corrections or ())
    if s.head == "fused" and whole_sequences(s.objective, names):
        what = next((n for n in names if n in SEQUENCE_RULES), None)
        what = f"correction {what!r}" if what else f"objective = {s.objective!r}"
        return f"{what} looks at whole sequences, head = 'fused' at chunks: set head = 'recompute' or 'auto'"
    if s.head == "fused" and s.head_cache_gib:
        return "head_cache_gib keeps logits for head = 'recompute'; head = 'fused' needs none"
    return None
