"""Options of slime and TritonForge without a counterpart, and why; `configs.importing.slime` has the others."""

from configs.importing.reading import rules

REFUSED = rules(
    [
        (
            "rollout-batch-size",
            "there are no rollout batches: groups are admitted one by one",
        ),
        (
            "num-epoch",
            "tasks are repeated until run.steps",
        ),
        (
            "over-sampling-batch-size",
            "nothing is generated to be thrown away; rollout.groups_in_flight, sampler.max_staleness",
        ),
        (
            "rollout-max-prompt-len",
            'tasks are not filtered by length; episodes.history = "compressed" shortens later turns',
        ),
        (
            "partial-rollout",
            "always so here: weights change under running sequences",
        ),
        (
            "mask-offpolicy-in-partial-rollout",
            "every token has its own version and log-prob: learner.corrections",
        ),
        (
            "use-fault-tolerance rollout-health-check-*",
            "always so here: bus.dead_after_s, bus.ack_wait_s",
        ),
        (
            "update-weights-interval",
            "every update is published here",
        ),
        (
            "update-weight-*",
            "weights.transport and weights.folder say how weights travel; no deltas",
        ),
        (
            "custom-tis-function-path custom-advantage-function-path custom-loss-function-path custom-*-path "
            "rollout-sample-filter-path rollout-data-postprocess-path buffer-filter-path rollout-*-path "
            "data-source-path eval-function-path loss-type",
            "no function of your own here",
        ),
        (
            "micro-batch-size ref-micro-batch-size use-dynamic-batch-size balance-data balance-by-flops",
            "batches are always packed here, up to learner.max_tokens_per_rank",
        ),
        (
            "data-pad-size-multiplier",
            "learner.pack_multiple is ours, 0 unless set",
        ),
        (
            "log-probs-chunk-size log-probs-max-tokens-per-gpu",
            "learner.head_chunk_tokens bounds logits",
        ),
        (
            "ref-load ref-ckpt-step ref-update-interval",
            "the reference is the policy in model.path, for the whole run",
        ),
        (
            "load",
            "the first checkpoint is model.path: where training began from these weights, convert them "
            "(convert_torch_dist_to_hf.py) and name that folder",
        ),
        (
            "start-rollout-id ckpt-step no-load-* finetune",
            "kernelmill up with the same run.name goes on by itself",
        ),
        (
            "save",
            "checkpoints lie in run.folder/run.name",
        ),
        (
            "save-hf",
            "kernelmill export RUN makes a Hugging Face folder",
        ),
        (
            "async-save",
            "checkpoints are always written beside training",
        ),
        (
            "no-save-*",
            "checkpoints hold everything",
        ),
        (
            "colocate offload offload-* no-offload-* release-train",
            "learner and engine work at once here: nothing is moved out of the way",
        ),
        (
            "rm-url group-rm reward-key eval-reward-key",
            "rewards are for kernels (reward.shape); no reward model",
        ),
        (
            "agent-rollout-buffer-url rollout-buffer-url fetch-trajectory-* min-batch-collection-ratio",
            "there is no rollout buffer: generators play episodes themselves",
        ),
        (
            "remote-eval-server-url rollout-external-engine-addrs",
            "evaluators and generators join by themselves (docs/gateway.md)",
        ),
        (
            "input-key label-key metadata-key tool-key multimodal-keys eval-input-key eval-label-key eval-tool-key",
            "task rows have fixed names (label, instance_id, extra_info), prompts are ours (episodes.prompt)",
        ),
        (
            "apply-chat-template loss-mask-type rollout-skip-special-tokens",
            "the model's chat template is always used, on ids",
        ),
        (
            "apply-chat-template-kwargs",
            "episodes.thinking is the one switch of templates",
        ),
        (
            "rollout-stop rollout-stop-token-ids",
            "a turn ends with the template's own token",
        ),
        (
            "eval-config",
            "another file's settings are not read; tasks.heldout, evaluation.samples",
        ),
        (
            "eval-* skip-eval-before-train",
            "evaluation samples as training does (rollout.), or is greedy; before training: kernelmill evaluate",
        ),
        (
            "wandb-key wandb-host wandb-team wandb-* disable-wandb-*",
            "wandb reads its own environment (WANDB_API_KEY, ...)",
        ),
        (
            "use-tensorboard tb-*",
            "figures go to record/, wandb and report.html",
        ),
        (
            "log-* dump-details profile-* memory-* record-memory-history use-pytorch-profiler",
            "docs/metrics.md has what is recorded",
        ),
        (
            "sglang-log-level*",
            "logs are in the run's folder",
        ),
        (
            "sglang-* router-* spec prefill-num-servers",
            "vLLM generates: rollout.vllm.extra takes AsyncEngineArgs",
        ),
        (
            "use-rollout-routing-replay use-routing-replay moe-* expert-* num-experts",
            "no expert parallelism, no router replay",
        ),
        (
            "tensor-model-parallel-size pipeline-model-parallel-size *pipeline* sequence-parallel allgather-cp "
            "use-distributed-optimizer overlap-* accumulate-allreduce-* no-gradient-* distributed-* train-backend "
            "megatron-* transformer-impl *fusion attention-softmax-in-fp32 fp8-* use-precision-aware-optimizer",
            "no Megatron here: FSDP2 (docs/learner.md)",
        ),
        (
            "attention-backend",
            "learner.attention says it, auto unless set",
        ),
        (
            "attention-dropout hidden-dropout",
            "nothing is dropped out here",
        ),
        (
            "recompute-method recompute-num-layers recompute-loss-function",
            "every layer is computed again, or none is",
        ),
        (
            "seq-length max-position-embeddings swiglu num-layers hidden-size ffn-hidden-size num-attention-heads "
            "group-query-attention num-query-groups use-rotary-position-embeddings rotary-* no-rope-* "
            "use-rope-scaling rope-* norm* disable-bias-linear vocab-size padded-vocab-size make-vocab-size-* "
            "kv-channels qk-* untie-* add-qkv-bias position-embedding-type multi-latent-attention q-lora-rank "
            "kv-lora-rank v-head-dim mscale* mtp-* enable-mtp-training spec post-self-attn-layernorm "
            "post-mlp-layernorm apply-layernorm-1p attention-output-gate use-gated-attention "
            "no-position-embedding model-name enable-experimental ${MODEL_ARGS[@]}",
            "the model's shape is read from model.path",
        ),
        (
            "fp16 params-dtype",
            "model.dtype is float32 or bfloat16",
        ),
        (
            "adam-eps",
            "AdamW's is 1e-8",
        ),
        (
            "min-lr lr-decay-iters lr-warmup-fraction lr-warmup-init lr-decay-samples *wd-*",
            "learner.warmup_steps and learner.schedule, over the whole run",
        ),
        (
            "seed",
            "run.seed is of everything",
        ),
        (
            "use-opd opd-*",
            "no distillation from a teacher",
        ),
        (
            "num-critic-only-steps critic-*",
            "no warm-up of the critic alone; learner.critic_lr",
        ),
        (
            "only-train-params-name-list freeze-*",
            "all weights are trained, or adapters (learner.lora_rank)",
        ),
        (
            "disable-compute-advantages-and-returns",
            "no function of your own here",
        ),
        (
            "use-rollout-entropy get-mismatch-metrics",
            "always recorded (docs/metrics.md)",
        ),
        (
            "deterministic-mode no-check-for-nan-* ci-* debug-* *debug* check-weight-update-equal",
            "of their own tests",
        ),
        (
            "num-gpus-per-node http-proxy use-distributed-post train-env-vars disable-rollout-global-dataset",
            "no Ray here: kernelmill up starts the actors (docs/rollout.md)",
        ),
        (
            "reset-optimizer-states use-stateless-adam optimizer*",
            "AdamW alone, its state stays",
        ),
    ]
)
