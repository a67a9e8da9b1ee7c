"""Options of slime and TritonForge as settings of ours: docs/switching.md, row by row. `slime_refused` has the rest.

Their defaults that differ from ours are written out: a recipe that left them out would mean something else.
"""

from configs.importing.groups import batches, every, members, model_path, nodes, staleness, steps
from configs.importing.reading import Reading
from configs.importing.slime_refused import REFUSED

NONZERO_STD = "check_reward_nonzero_std"
ICEPOP = "icepop_function"
GROUPED = ("grpo", "gspo", "cispo")
TURN_BASED = ("kernelbench", "kernel_bench")
"""In the names of TritonForge's rewards and tasks."""


def convert(r: Reading, program: str) -> None:
    """Fill in what the launch of `program` (train.py, train_async.py) says."""
    forge = _is_forge(r)
    _model(r)
    _algorithm(r, forge)
    updates = _batches(r, program)
    _sampling(r, forge)
    _loss(r)
    _corrections(r, updates)
    _learner(r)
    _cards(r)
    _data(r)
    r.refuse_rest(REFUSED)


def _is_forge(r: Reading) -> bool:
    """TritonForge's: it has `gamma` over turns, and normalizes rewards in its rollout buffer."""
    names = [r.text(name) or "" for name in ("rm-type", "rollout-task-type") if r.has(name)]
    forge = r.has("max-turns") or any(word in name for name in names for word in TURN_BASED)
    for name in ("rm-type", "rollout-task-type"):
        if forge and r.has(name):
            r.set("reward.shape", "graded", "rm-type", note="0.1 compiled, 0.3 correct, plus speedup - 1; not by name")
        else:
            r.leave(name, "rewards are for kernels: reward.shape has four shapes, no function of your own")
    return forge


def _model(r: Reading) -> None:
    if r.has("hf-checkpoint"):
        model_path(r, "hf-checkpoint", "read as it is, nothing is converted")
    if r.has("bf16") and r.flag("bf16"):
        r.set("model.dtype", "bfloat16", "bf16")
    if (tokens := r.whole("rollout-max-context-len")) is not None:
        r.set(
            "model.context_tokens", tokens, "rollout-max-context-len", note="an episode that no longer fits ends there"
        )


def _algorithm(r: Reading, forge: bool) -> None:
    name = r.text("advantage-estimator", "grpo")
    gamma, lam = r.number("gamma", 0.4 if forge else 1.0), r.number("lambd", 1.0)
    whiten = r.flag("normalize-advantages")
    raw, no_std = r.flag("disable-rewards-normalization"), r.flag("disable-grpo-std-normalization")
    if name in GROUPED:
        r.set("learner.advantage", "group", "advantage-estimator", note="ours compares turns (TRLOO) unless set")
        if raw and not forge:
            r.set("learner.baseline", "none", "disable-rewards-normalization")
            r.set("learner.scale", "none", "disable-rewards-normalization")
        else:
            note = "their rollout buffer normalizes instead" if raw else ""
            r.set("learner.baseline", "mean", "advantage-estimator", "disable-rewards-normalization", note=note)
            r.set(
                "learner.scale", "none" if no_std else "group", "advantage-estimator", "disable-grpo-std-normalization"
            )
        if name != "grpo":
            r.set("learner.objective", name, "advantage-estimator", note="loss and advantage are two settings here")
        if whiten:
            r.leave(
                "normalize-advantages", 'learner.scale is one of "group", "batch" and "none"; the group\'s was taken'
            )
    elif name in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        r.set("learner.advantage", "reinforce_plus_plus", "advantage-estimator")
        base = "mean" if name.endswith("baseline") and not raw else "none"
        r.set("learner.baseline", base, "advantage-estimator", "disable-rewards-normalization")
        r.set(
            "learner.scale",
            "batch" if whiten else "none",
            "normalize-advantages",
            note="slime whitens by its flag alone",
        )
        r.set("learner.token_gamma", 1.0 if forge else gamma, "gamma")
    elif name == "ppo":
        r.set("learner.advantage", "gae", "advantage-estimator", note="no warm-up of the critic alone")
        r.set("learner.baseline", "none", "advantage-estimator")
        r.set(
            "learner.scale",
            "batch" if whiten else "none",
            "normalize-advantages",
            note="slime whitens by its flag alone",
        )
        r.set("learner.gae_lambda", lam, "lambd")
        r.set("learner.token_gamma", 1.0 if forge else gamma, "gamma")
        r.carry("learner.value_clip", "value-clip", r.number)
    else:
        r.leave("advantage-estimator", "it has no counterpart; learner.advantage is ours (docs/algorithms.md)")
        return
    r.set("episodes.credit", "trajectory", "advantage-estimator", note="one sample with all its turns")
    if forge:
        r.set(
            "episodes.gamma",
            gamma,
            "gamma",
            note="over turns" if r.has("gamma") else "over turns; TritonForge's default",
        )
    elif name in GROUPED:
        r.leave("gamma", f"acts on no advantage of {name} there; ours over turns is episodes.gamma")
    if name != "ppo":
        r.leave("lambd", f"acts on no advantage of {name}")


def _batches(r: Reading, program: str) -> int | None:
    """Updates on one rollout batch."""
    size = members(r, "n-samples-per-prompt", r.whole("n-samples-per-prompt", 1))
    rollout, samples = r.whole("rollout-batch-size"), r.whole("global-batch-size")
    times = r.whole("num-steps-per-rollout")
    made = ("global-batch-size", "n-samples-per-prompt")
    if times and times > 0 and rollout:
        samples, made = rollout * size // times, ("num-steps-per-rollout", "n-samples-per-prompt")
        r.leave("global-batch-size", "num-steps-per-rollout says it")
    elif times is not None:
        r.leave("num-steps-per-rollout", "it is no number of updates on a known rollout-batch-size")
    updates = batches(r, rollout, "rollout-batch-size", samples, size, made)
    steps(r, "num-rollout", updates)
    if r.has("num-rollout"):
        r.leave("num-epoch", "num-rollout says it, there as well")
    function = r.text("rollout-function-path") or ""
    if "fully_async" in function:
        r.leave(
            "rollout-function-path", "it bounds no staleness; ours is bounded by sampler.max_staleness, 2 unless set"
        )
    else:
        name = program.rpartition("/")[2] or "train.py"
        staleness(r, updates, name == "train_async.py", name, "num-steps-per-rollout")
        usual = any(word in function for word in ("agent_rollout", "sglang_rollout"))
        why = "generators play episodes here; there is no function of your own"
        r.leave("rollout-function-path", why if usual else f"{why}: what yours does is not carried over")
    order = "shuffled" if r.flag("rollout-shuffle") else "sequential"
    r.set("sampler.order", order, "rollout-shuffle")
    r.carry("run.seed", "rollout-seed", r.whole, note="every draw of the run")
    if path := r.text("dynamic-sampling-filter-path"):
        if path.endswith(NONZERO_STD):
            r.set("learner.dynamic_sampling", True, "dynamic-sampling-filter-path", note="groups with equal returns")
        else:
            r.leave(
                "dynamic-sampling-filter-path", "no function of your own; learner.dynamic_sampling drops equal returns"
            )
    every(r, "save-interval", "checkpoints.every_steps", updates)
    every(r, "eval-interval", "evaluation.every_steps", updates)
    return updates


def _sampling(r: Reading, forge: bool) -> None:
    r.carry("rollout.temperature", "rollout-temperature", r.number)
    r.carry("rollout.top_p", "rollout-top-p", r.number, note="slime cuts the learner's distribution too, ours is whole")
    if (top := r.whole("rollout-top-k")) is not None:
        r.set("rollout.top_k", max(top, 0), "rollout-top-k", note="0 is off")
    r.carry("rollout.max_new_tokens", "rollout-max-response-len", r.whole, note="of one turn; there of a whole sample")
    r.carry("episodes.max_turns", "max-turns", r.whole)
    if r.has("max-turns"):
        return
    if forge and "multi" in (r.text("rm-type") or ""):
        r.set("episodes.max_turns", 3, note="TritonForge's default")
    elif not r.has("custom-generate-function-path"):
        r.set("episodes.max_turns", 1, note="a sample has one answer there; ours has 3 turns unless set")


def _loss(r: Reading) -> None:
    objective = r.settings["learner.objective"].value if "learner.objective" in r.settings else "ppo_clip"
    low = r.number("eps-clip", 0.2)
    high = r.number("eps-clip-high", low)
    if objective == "cispo":
        r.set("learner.clip_low", 1.0, "advantage-estimator", note="cispo has no lower bound")
        r.leave("eps-clip", "cispo has no lower bound")
    else:
        r.set("learner.clip_low", low, "eps-clip")
    note = "" if r.has("eps-clip-high") else "as the lower one; ours is 0.28 unless set"
    r.set("learner.clip_high", high, "eps-clip-high" if r.has("eps-clip-high") else "eps-clip", note=note)
    if (dual := r.number("eps-clip-c")) is not None:
        if objective == "ppo_clip":
            r.set("learner.dual_clip", dual, "eps-clip-c")
        else:
            r.leave("eps-clip-c", f"objective {objective} has none here")
    r.set("learner.entropy_coef", r.number("entropy-coef", 0.0), "entropy-coef")
    whole = r.flag("calculate-per-token-loss")
    r.set("learner.denominator", "token" if whole else "rollout", "calculate-per-token-loss")
    _kl(r)


def _kl(r: Reading) -> None:
    in_loss, coef = r.flag("use-kl-loss"), r.number("kl-loss-coef", 0.0)
    reward, kind = r.number("kl-coef", 0.0), r.text("kl-loss-type", "k1")
    unbiased = r.flag("use-unbiased-kl")
    if in_loss and coef:
        r.set("learner.kl_coef", coef, "kl-loss-coef", "use-kl-loss")
        if kind == "k1" and not unbiased:
            r.set("learner.kl_estimator", "k3", note="k1 in the loss has a gradient of mean zero: k3 was taken")
            r.leave("kl-loss-type", "k1 in the loss has a gradient of mean zero and is refused: k3 was taken")
        elif kind in ("k1", "k2", "k3", "low_var_kl"):
            r.set("learner.kl_estimator", "k3" if kind == "low_var_kl" else kind, "kl-loss-type")
            if kind == "low_var_kl":
                r.set("learner.kl_ceiling", 10.0, "kl-loss-type", note="theirs is bounded at 10")
        else:
            r.leave("kl-loss-type", "it is none of k1, k2, k3 and low_var_kl")
        if unbiased:
            r.set("learner.kl_ratio_weighted", True, "use-unbiased-kl", note="over the policy that sampled")
        if reward:
            r.leave("kl-coef", "KL is in the loss or in the reward here: the loss's was taken")
    elif reward and r.text("advantage-estimator", "grpo") in GROUPED:
        r.set("learner.kl_coef", 0.0, "kl-loss-coef", "use-kl-loss", note="ours is on unless set")
        r.leave("kl-coef", "it acts on no advantage of this estimator there; with every one here")
    elif reward:
        r.set("learner.kl_in", "reward", "kl-coef")
        r.set("learner.kl_estimator", "k1", "kl-coef")
        r.set("learner.kl_coef", reward, "kl-coef", note="acts with every advantage")
    else:
        note = "ours is on, at 0.01, unless set; 0 saves the reference's memory"
        r.set("learner.kl_coef", 0.0, "kl-loss-coef", "use-kl-loss", "kl-coef", note=note)
    if not (in_loss and coef):
        for name in ("kl-loss-type", "use-unbiased-kl"):
            r.leave(name, "there is no KL in the loss")
        if not in_loss and coef:
            r.leave("kl-loss-coef", "without use-kl-loss it does nothing")


def _corrections(r: Reading, updates: int | None) -> None:
    tis, opsm = r.flag("use-tis"), r.flag("use-opsm")
    low, high = r.number("tis-clip-low", 0.0), r.number("tis-clip", 2.0)
    path = r.text("custom-tis-function-path")
    old, behaviour = r.flag("keep-old-actor"), r.flag("use-rollout-logprobs")
    delta = r.number("opsm-delta", 1e-4)
    made: list[dict[str, object]] = []
    if old or behaviour:
        note = "each token's own log-prob, no second copy of weights"
        r.set("learner.proximal", "behaviour", "use-rollout-logprobs", "keep-old-actor", note=note)
        if tis:
            r.leave("use-tis", 'learner.proximal = "behaviour" clips that ratio already')
    else:
        note = 'one update to a batch here, so its ratio is 1: "behaviour" clips' if (updates or 1) > 1 else ""
        r.set("learner.proximal", "recompute", note=note)
        if tis and path and not path.endswith(ICEPOP):
            r.leave("custom-tis-function-path", "no function of your own; learner.corrections has what there is")
            r.leave("use-tis", "with a function of your own; learner.corrections has what there is")
        elif tis and path:
            made.append({"name": "icepop", "low": low, "high": high})
        elif tis:
            made.append({"name": "token_tis", "high": high, **({"low": low} if low else {})})
    if opsm:
        made.append({"name": "off_policy_sequence_mask", "high": delta})
    note = "none; ours is token_tis at 2 unless set" if not made else ""
    if opsm:
        note = "off_policy_sequence_mask measures from the policy that sampled here: start from 0.1, not 1e-4"
    names = ("use-tis", "tis-clip", "tis-clip-low", "custom-tis-function-path", "use-opsm", "opsm-delta")
    r.set("learner.corrections", made, *names, note=note)
    if not tis:
        for name in ("tis-clip", "tis-clip-low", "custom-tis-function-path"):
            r.leave(name, "without use-tis it does nothing")


def _learner(r: Reading) -> None:
    r.carry("learner.lr", "lr", r.number)
    r.carry("learner.grad_clip", "clip-grad", r.number)
    decay = r.number("weight-decay", 0.01)
    note = "" if r.has("weight-decay") else "Megatron's default; ours is 0"
    r.set("learner.weight_decay", decay, "weight-decay", note=note)
    if r.has("adam-beta1") or r.has("adam-beta2"):
        betas = [r.number("adam-beta1", 0.9), r.number("adam-beta2", 0.999)]
        r.set("learner.betas", betas, "adam-beta1", "adam-beta2")
    r.carry("learner.warmup_steps", "lr-warmup-iters", r.whole)
    if style := r.text("lr-decay-style"):
        if style in ("constant", "linear", "cosine"):
            r.set("learner.schedule", style, "lr-decay-style")
        else:
            r.leave("lr-decay-style", "learner.schedule is constant, linear or cosine")
    optimizer = r.text("optimizer", "adam")
    r.leave("optimizer", "it is AdamW here too" if optimizer == "adam" else "AdamW alone")
    r.carry("learner.max_tokens_per_rank", "max-tokens-per-gpu", r.whole, note="a longer sample has a row to itself")
    if grain := r.text("recompute-granularity"):
        if grain == "full":
            r.set("learner.activation_checkpointing", "full", "recompute-granularity")
        else:
            r.leave(
                "recompute-granularity",
                'learner.activation_checkpointing: "selective" and "attention" mean other parts',
            )
    if r.flag("optimizer-cpu-offload"):
        r.set("learner.cpu_offload", True, "optimizer-cpu-offload", note="masters, gradients and moments")
    if (parts := r.whole("context-parallel-size")) is not None:
        note = "only samples that are too long are split" if parts > 1 else ""
        r.set("learner.context_parallel", parts > 1, "context-parallel-size", note=note)


def _cards(r: Reading) -> None:
    ranks = nodes(r, "actor-num-nodes", "actor-num-gpus-per-node")
    r.set("rollout.engine", "vllm", note="vLLM in place of SGLang")
    per = r.whole("rollout-num-gpus-per-engine", 1) or 1
    if r.has("rollout-num-gpus-per-engine"):
        r.set("rollout.vllm.tensor_parallel", per, "rollout-num-gpus-per-engine")
    cards, colocated = r.whole("rollout-num-gpus"), r.flag("colocate")
    if colocated and ranks == 1:
        note = "one card holds both, so the engine's cache has a size: choose it"
        r.set("weights.transport", "ipc", "colocate", note="learner and engine share the card")
        r.set("rollout.vllm.cache_gb", 8.0, "colocate", note=note)
    elif colocated:
        r.leave(
            "colocate", 'on one card it is weights.transport = "ipc"; of several give engines theirs: rollout.cards'
        )
    if cards is not None and ranks and not colocated:
        note = f"behind the learner's {ranks}" if ranks > 1 else "behind the learner's one"
        if ranks + cards <= 64 and cards >= per:
            r.set("rollout.cards", list(range(ranks, ranks + cards)), "rollout-num-gpus", note=note)
            count = cards // per
            r.set("local.generators", count, "rollout-num-gpus", note=f"{cards} cards, {per} to an engine")
        else:
            r.leave("rollout-num-gpus", "rollout.cards names cards of this machine")
    else:
        r.leave("rollout-num-gpus", "rollout.cards and local.generators say it")
    if transport := r.text("update-weight-transport"):
        if transport == "disk":
            r.set("weights.transport", "filesystem", "update-weight-transport")
        elif transport == "nccl" and not colocated:
            r.set("weights.transport", "nccl", "update-weight-transport")
        else:
            r.leave("update-weight-transport", "weights.transport: filesystem, ipc, nccl or adapter")
    r.carry("rollout.vllm.gpu_memory", "sglang-mem-fraction-static", r.number, note="weights and cache, as vLLM counts")
    for name in ("sglang-server-concurrency", "sglang-max-running-requests"):
        r.carry("rollout.vllm.max_sequences", name, r.whole)


def _data(r: Reading) -> None:
    path = r.text("prompt-data")
    if path and path.endswith((".jsonl", ".json")):
        note = "rows need label, instance_id, extra_info as TritonForge's; their prompt is ignored"
        r.set("tasks.train", [{"kind": "jsonl", "path": path}], "prompt-data", note=note)
    elif path:
        r.leave("prompt-data", "rows of JSONL are read, whole files of them: write such a file (tasks.train)")
    held = r.words("eval-prompt-data")
    if len(held) == 2 and held[1].endswith(".jsonl"):
        r.set("tasks.heldout", [{"kind": "jsonl", "path": held[1]}], "eval-prompt-data", note="rows as in tasks.train")
    else:
        r.leave("eval-prompt-data", "one NAME FILE.jsonl is read (tasks.heldout)")
    r.carry("evaluation.samples", "n-samples-per-eval-prompt", r.whole)
    if (heat := r.number("eval-temperature")) is not None:
        if heat == 0 and r.whole("n-samples-per-eval-prompt", 1) == 1:
            r.set("evaluation.greedy", True, "eval-temperature")
        else:
            r.leave("eval-temperature", "evaluation samples as training does, or is greedy")
    if r.has("wandb-project") and (project := r.text("wandb-project")):
        r.set("recorder.project", project, "wandb-project")
    if r.flag("use-wandb"):
        r.set("recorder.wandb", "auto", "use-wandb", note="online with a key in the environment, else offline")
    if mode := r.text("wandb-mode"):
        r.set("recorder.wandb", mode, "wandb-mode")
