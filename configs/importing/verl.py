"""Options of verl as settings of ours: docs/switching.md, row by row. `verl_learning` has the algorithm's,
`verl_refused` those without a counterpart. verl's defaults that differ from ours are written out."""

import re

from configs.importing.groups import batches, every, members, model_path, nodes, staleness, steps
from configs.importing.reading import Reading
from configs.importing.verl_learning import algorithm, corrections, loss
from configs.importing.verl_refused import REFUSED

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}." for part in ("actor", "rollout", "model"))
OVERLONG = (
    "reward_model.reward_kwargs.overlong_buffer_cfg.",
    "reward.reward_kwargs.overlong_buffer_cfg.",
    "reward_model.overlong_buffer.",
)


def convert(r: Reading, program: str) -> None:
    """Fill in what the launch of `program` (verl.trainer.main_ppo, ...) says."""
    _model(r)
    algorithm(r)
    updates = _batches(r, program)
    _sampling(r)
    loss(r)
    corrections(r, updates)
    _learner(r)
    _engine(r)
    _data(r)
    r.refuse_rest(REFUSED)


def _model(r: Reading) -> None:
    if r.has(MODEL + "path"):
        model_path(r, MODEL + "path", "")
    r.carry(
        "model.context_tokens", ROLLOUT + "max_model_len", r.whole, note="an episode that no longer fits ends there"
    )
    rank = r.whole(MODEL + "lora_rank", 0) or 0
    if rank:
        r.set("learner.lora_rank", rank, MODEL + "lora_rank", note='weights.transport = "adapter" sends adapters alone')
        r.set("learner.lora_alpha", r.number(MODEL + "lora_alpha", 16.0), MODEL + "lora_alpha")
        if targets := r.text(MODEL + "target_modules"):
            names = re.findall(r"[\w.]+", targets)
            if targets == "all-linear":
                r.leave(MODEL + "target_modules", "learner.lora_targets is the seven products of a block unless set")
            elif targets.startswith("["):
                r.set("learner.lora_targets", names, MODEL + "target_modules")
            else:
                r.leave(MODEL + "target_modules", "learner.lora_targets is a list of names, no pattern")
    else:
        for name in ("lora_alpha", "target_modules"):
            r.leave(MODEL + name, "without lora_rank it does nothing")


def _batches(r: Reading, program: str) -> int | None:
    """Updates on one rollout batch."""
    members(r, ROLLOUT + "n", r.whole(ROLLOUT + "n", 1))
    mini = ACTOR + "ppo_mini_batch_size"
    rollout, prompts = r.whole("data.train_batch_size", 1024), r.whole(mini, 256)
    updates = batches(r, rollout, "data.train_batch_size", prompts, 1, (mini,))
    steps(r, "trainer.total_training_steps", updates)
    mode, threshold = r.text("trainer.v1.trainer_mode"), r.whole("trainer.v1.sampler.max_off_policy_threshold")
    names = ("trainer.v1.trainer_mode", "trainer.v1.sampler.max_off_policy_threshold")
    if mode in ("colocate_async", "separate_async") and updates is not None:
        versions = threshold or 8
        note = f"about ({versions} - 1) · {updates}: a version is one update here"
        r.set("sampler.max_staleness", (versions - 1) * updates, *names, note=note)
    elif "fully_async" in program:
        r.leave(
            "async_training.staleness_threshold", "a share, no number of versions: sampler.max_staleness, 2 unless set"
        )
    elif mode in (None, "sync"):
        staleness(r, updates, "one_step_off" in program, program or "verl", names[0])
    else:
        r.leave(names[0], "sampler.max_staleness is ours")
    r.set("sampler.order", "shuffled" if r.switch("data.shuffle", True) else "sequential", "data.shuffle")
    r.carry("run.seed", "data.seed", r.whole, note="every draw of the run")
    if r.switch("algorithm.filter_groups.enable", False):
        r.set("learner.dynamic_sampling", True, "algorithm.filter_groups.enable", note="groups with equal returns")
    every(r, "trainer.save_freq", "checkpoints.every_steps", updates)
    every(r, "trainer.test_freq", "evaluation.every_steps", updates)
    r.carry("checkpoints.keep", "trainer.max_actor_ckpt_to_keep", r.whole)
    return updates


def _sampling(r: Reading) -> None:
    for name, key in (("temperature", "rollout.temperature"), ("top_p", "rollout.top_p")):
        r.carry(key, ROLLOUT + name, r.number)
    if (top := r.whole(ROLLOUT + "top_k")) is not None:
        r.set("rollout.top_k", max(top, 0), ROLLOUT + "top_k", note="0 is off")
    length = r.whole("data.max_response_length", 512)
    note = "of one turn; there of a whole sample, with tools' output"
    if not r.has("data.max_response_length"):
        note += "; verl's default"
    r.set("rollout.max_new_tokens", length, "data.max_response_length", note=note)
    turns = ROLLOUT + "multi_turn.max_assistant_turns"
    many = r.switch(ROLLOUT + "multi_turn.enable", False) or r.has(turns)
    if many and (count := r.whole(turns)) is not None:
        r.set("episodes.max_turns", count, turns, note="a turn is one kernel and its verdict; no tools")
    elif not many:
        r.set("episodes.max_turns", 1, note="a sample has one answer there; ours has 3 turns unless set")
    for prefix in OVERLONG:
        if r.has(prefix + "enable") or r.has(prefix + "len"):
            on = r.switch(prefix + "enable", True)
            tokens, factor = r.whole(prefix + "len"), r.number(prefix + "penalty_factor")
            if on and tokens is not None:
                r.set(
                    "learner.overlong_buffer_tokens",
                    tokens,
                    prefix + "len",
                    prefix + "enable",
                    note="by the longest turn",
                )
                if factor is not None:
                    r.set("learner.overlong_factor", factor, prefix + "penalty_factor")
            elif not on:
                r.set("learner.overlong_buffer_tokens", 0, prefix + "enable")
                for name in ("len", "penalty_factor"):
                    r.leave(prefix + name, "it is off there")


def _learner(r: Reading) -> None:
    optim = ACTOR + "optim."
    ranks = nodes(r, "trainer.nnodes", "trainer.n_gpus_per_node")
    if ranks == 1:
        r.set("weights.transport", "ipc", "trainer.n_gpus_per_node", note="learner and engine share the card")
        note = "one card holds both, so the engine's cache has a size: choose it"
        r.set("rollout.vllm.cache_gb", 8.0, ROLLOUT + "free_cache_engine", note=note)
    elif ranks:
        note = "engines need cards of their own here (rollout.cards): there they share these"
        r.set("learner.ranks", ranks, "trainer.n_gpus_per_node", "trainer.nnodes", note=note)
    r.carry("learner.lr", optim + "lr", r.number)
    r.set("learner.weight_decay", r.number(optim + "weight_decay", 0.01), optim + "weight_decay")
    for name in (optim + "clip_grad", ACTOR + "grad_clip"):
        r.carry("learner.grad_clip", name, r.number)
    if betas := r.text(optim + "betas"):
        parts = re.findall(r"[\d.eE+-]+", betas)
        try:
            r.set("learner.betas", [float(part) for part in parts], optim + "betas")
        except ValueError:
            r.leave(optim + "betas", "wanted two numbers")
    _schedule(r, optim)
    if (value := r.whole(ACTOR + "ppo_max_token_len_per_gpu")) is not None:
        name = ACTOR + "ppo_max_token_len_per_gpu"
        r.set("learner.max_tokens_per_rank", value, name, note="always packed; a longer sample has a row to itself")
    again = r.switch(MODEL + "enable_gradient_checkpointing", True)
    r.set("learner.activation_checkpointing", "full" if again else "none", MODEL + "enable_gradient_checkpointing")
    moved = [
        ACTOR + f"{part}.{what}"
        for part in ("fsdp_config", "megatron")
        for what in ("optimizer_offload", "param_offload")
    ]
    given = [name for name in moved if r.has(name)]
    if given:
        on = [r.switch(name, False) for name in given]
        r.set("learner.cpu_offload", any(on), *given, note="one switch for masters, gradients and moments")
    if (split := r.whole(ACTOR + "ulysses_sequence_parallel_size")) is not None:
        note = "only samples that are too long are split" if split > 1 else ""
        r.set("learner.context_parallel", split > 1, ACTOR + "ulysses_sequence_parallel_size", note=note)


def _schedule(r: Reading, optim: str) -> None:
    steps, share = r.whole(optim + "lr_warmup_steps"), r.number(optim + "lr_warmup_steps_ratio")
    run = r.settings.get("run.steps")
    if steps is not None and steps >= 0:
        r.set("learner.warmup_steps", steps, optim + "lr_warmup_steps")
        r.leave(optim + "lr_warmup_steps_ratio", "lr_warmup_steps says it")
    elif share and run is not None:
        note = f"{share:g} of run.steps"
        r.set("learner.warmup_steps", round(share * run.value), optim + "lr_warmup_steps_ratio", note=note)
    elif share:
        r.leave(optim + "lr_warmup_steps_ratio", "a share of steps that the script does not name: learner.warmup_steps")
    for name in ("lr_scheduler_type", "warmup_style", "lr_decay_style"):
        if style := r.text(optim + name):
            if style in ("constant", "cosine", "linear"):
                r.set("learner.schedule", style, optim + name)
            else:
                r.leave(optim + name, "learner.schedule is constant, linear or cosine")


def _engine(r: Reading) -> None:
    name = r.text(ROLLOUT + "name", "vllm")
    engine = "transformers" if name == "hf" else "vllm"
    r.set("rollout.engine", engine, ROLLOUT + "name", note="" if name in ("vllm", "hf") else f"vLLM in place of {name}")
    for theirs, ours in (("tensor_model_parallel_size", "tensor_parallel"), ("max_num_seqs", "max_sequences")):
        r.carry(f"rollout.vllm.{ours}", ROLLOUT + theirs, r.whole)
    r.carry(
        "rollout.vllm.gpu_memory",
        ROLLOUT + "gpu_memory_utilization",
        r.number,
        note="" if name == "vllm" else "weights and cache, as vLLM counts",
    )
    if r.has(ROLLOUT + "enforce_eager"):
        r.set("rollout.vllm.eager", r.switch(ROLLOUT + "enforce_eager", False), ROLLOUT + "enforce_eager")
    if r.has(ROLLOUT + "enable_prefix_caching"):
        on = r.switch(ROLLOUT + "enable_prefix_caching", True)
        r.set("rollout.vllm.prefix_cache", on, ROLLOUT + "enable_prefix_caching")
    if r.text(ROLLOUT + "checkpoint_engine.backend") == "nccl":
        r.set("weights.transport", "nccl", ROLLOUT + "checkpoint_engine.backend")


def _data(r: Reading) -> None:
    for name, key in (("data.train_files", "tasks.train"), ("data.val_files", "tasks.heldout")):
        files = re.findall(r"[^\s\[\]'\",]+", r.text(name) or "")
        if files and all(file.endswith(".jsonl") for file in files):
            note = "rows need label, instance_id, extra_info; prompts are ours"
            r.set(key, [{"kind": "jsonl", "path": file} for file in files], name, note=note)
        else:
            r.leave(name, f"rows of JSONL are read, no Parquet: write such rows ({key}); our starter tasks stand there")
    count, sampled = r.whole(ROLLOUT + "val_kwargs.n", 1), r.switch(ROLLOUT + "val_kwargs.do_sample", False)
    if r.has(ROLLOUT + "val_kwargs.n"):
        r.set("evaluation.samples", count, ROLLOUT + "val_kwargs.n")
    if sampled or count == 1:
        r.set(
            "evaluation.greedy",
            not sampled,
            ROLLOUT + "val_kwargs.do_sample",
            note="verl validates greedily unless told",
        )
    if project := r.text("trainer.project_name"):
        r.set("recorder.project", project, "trainer.project_name")
    if logger := r.text("trainer.logger"):
        note = "online with a key in the environment, else offline" if "wandb" in logger else ""
        r.set("recorder.wandb", "auto" if "wandb" in logger else "disabled", "trainer.logger", note=note)
