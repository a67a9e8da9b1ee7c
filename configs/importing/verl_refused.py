"""Options of verl without a counterpart, and why; `configs.importing.verl` has the others."""

from configs.importing.reading import rules

REFUSED = rules(
    [
        (
            "data.train_batch_size",
            "there are no rollout batches: groups are admitted one by one",
        ),
        (
            "data.gen_batch_size actor_rollout_ref.rollout.over_sample_rate",
            "nothing is generated to be thrown away; rollout.groups_in_flight, sampler.max_staleness",
        ),
        (
            "algorithm.filter_groups.*",
            "equal returns are the one choice; sampler.give_up_after_rejected ends a run",
        ),
        (
            "trainer.total_epochs actor_rollout_ref.actor.ppo_epochs rollout.total_epochs rollout.total_rollout_steps",
            "tasks are repeated until run.steps (optimizer updates), a group is trained on once",
        ),
        (
            "data.max_prompt_length data.filter_overlong_prompts* data.truncation",
            'tasks are not filtered by length; episodes.history = "compressed" shortens later turns',
        ),
        (
            "actor_rollout_ref.actor.ppo_micro_batch_size* actor_rollout_ref.actor.use_dynamic_bsz "
            "*log_prob_micro_batch_size* *log_prob_use_dynamic_bsz *log_prob_max_token_len_per_gpu "
            "actor_rollout_ref.model.use_remove_padding trainer.balance_batch *micro_batch_size*",
            "batches are always packed here, up to learner.max_tokens_per_rank",
        ),
        (
            "actor_rollout_ref.actor.strategy actor_rollout_ref.hybrid_engine trainer.use_legacy_worker_impl "
            "*nccl_timeout",
            "FSDP2 (learner.ranks, learner.shard, learner.collective_timeout_s)",
        ),
        (
            "actor_rollout_ref.actor.megatron.* actor_rollout_ref.ref.megatron.* critic.megatron.* megatron.* "
            "*virtual_pipeline*",
            "no Megatron here: FSDP2 (docs/learner.md)",
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.* actor_rollout_ref.ref.fsdp_config.* critic.*fsdp_config.*",
            "FSDP2 with float32 masters over all ranks; learner.cpu_offload is its one switch",
        ),
        (
            "actor_rollout_ref.actor.optim.*",
            "AdamW with learner.lr, betas, weight_decay, warmup_steps and schedule, over the whole run",
        ),
        (
            "actor_rollout_ref.actor.use_torch_compile *use_torch_compile",
            "learner.compile, by the model's size unless set",
        ),
        (
            "actor_rollout_ref.actor.entropy_checkpointing *entropy_from_logits_with_chunking "
            "actor_rollout_ref.model.use_fused_kernels actor_rollout_ref.model.fused_kernel_options.*",
            "the head works in chunks (learner.head, learner.head_chunk_tokens)",
        ),
        (
            "actor_rollout_ref.model.use_liger actor_rollout_ref.model.enable_activation_offload "
            "actor_rollout_ref.model.use_shm actor_rollout_ref.model.tiled_mlp.*",
            "no counterpart in the learner",
        ),
        (
            "actor_rollout_ref.model.lora_adapter_path actor_rollout_ref.model.lora.* "
            "actor_rollout_ref.model.exclude_modules",
            "adapters begin at zero: learner.lora_rank, lora_alpha, lora_dropout, lora_targets",
        ),
        (
            "actor_rollout_ref.model.override_config.* actor_rollout_ref.model.hf_config_path "
            "actor_rollout_ref.model.tokenizer_path actor_rollout_ref.model.custom_chat_template",
            "all of the model is read from model.path",
        ),
        (
            "actor_rollout_ref.model.trust_remote_code data.trust_remote_code "
            "actor_rollout_ref.model.external_lib *trust_remote_code",
            "no code of a model is run",
        ),
        (
            "actor_rollout_ref.model.mtp.* actor_rollout_ref.actor.router_replay.* "
            "actor_rollout_ref.rollout.enable_rollout_routing_replay "
            "actor_rollout_ref.rollout.expert_parallel_size actor_rollout_ref.rollout.data_parallel_size",
            "no expert parallelism, no router replay, no multi-token prediction",
        ),
        (
            "actor_rollout_ref.actor.loss_scale_factor",
            "the constant is rollout.max_new_tokens",
        ),
        (
            "actor_rollout_ref.actor.policy_loss.* actor_rollout_ref.actor.tau_* "
            "actor_rollout_ref.actor.calculate_sum_pi_squared actor_rollout_ref.actor.*sum_pi_squared*",
            "of objectives without a counterpart",
        ),
        (
            "actor_rollout_ref.actor.freeze_vision_tower actor_rollout_ref.actor.use_prefix_grouper "
            "actor_rollout_ref.actor.shuffle actor_rollout_ref.actor.data_loader_seed",
            "no counterpart in the learner",
        ),
        (
            "actor_rollout_ref.ref.* ref.*",
            "the reference is the policy in model.path; learner.kl_coef = 0 keeps none",
        ),
        (
            "actor_rollout_ref.rollout.free_cache_engine actor_rollout_ref.rollout.enable_sleep_mode "
            "actor_rollout_ref.rollout.multi_stage_wake_up actor_rollout_ref.rollout.layered_summon "
            "actor_rollout_ref.rollout.load_format",
            "learner and engine work at once here: nothing is moved out of the way",
        ),
        (
            "actor_rollout_ref.rollout.mode actor_rollout_ref.rollout.calculate_log_probs "
            "actor_rollout_ref.rollout.logprobs_mode",
            "always asynchronous, each token with its log-prob",
        ),
        (
            "actor_rollout_ref.rollout.checkpoint_engine.*",
            "weights.transport and weights.folder say how weights travel; no deltas",
        ),
        (
            "actor_rollout_ref.rollout.prompt_length actor_rollout_ref.rollout.response_length",
            "rollout.max_new_tokens and model.context_tokens",
        ),
        (
            "actor_rollout_ref.rollout.multi_turn.* actor_rollout_ref.rollout.agent.*",
            "tools and agents have no counterpart: a turn is one kernel and its verdict (episodes.max_turns)",
        ),
        (
            "actor_rollout_ref.rollout.val_kwargs.*",
            "evaluation samples as training does (rollout.), or is greedy",
        ),
        (
            "actor_rollout_ref.rollout.max_num_batched_tokens actor_rollout_ref.rollout.enable_chunked_prefill "
            "actor_rollout_ref.rollout.engine_kwargs.* actor_rollout_ref.rollout.dtype "
            "actor_rollout_ref.rollout.ignore_eos actor_rollout_ref.rollout.do_sample",
            "rollout.vllm.extra takes AsyncEngineArgs",
        ),
        (
            "actor_rollout_ref.rollout.trace.* actor_rollout_ref.rollout.prometheus.* "
            "actor_rollout_ref.rollout.disable_log_stats actor_rollout_ref.rollout.profiler.* *profiler.* "
            "global_profiler.*",
            "docs/metrics.md has what is recorded",
        ),
        (
            "actor_rollout_ref.rollout.*",
            "vLLM's own settings: rollout.vllm, rollout.vllm.extra takes AsyncEngineArgs",
        ),
        (
            "rollout.nnodes rollout.n_gpus_per_node trainer.n_rollout_gpus_per_node",
            "local.generators and rollout.cards say where engines are",
        ),
        (
            "rollout.*",
            "of verl's fully asynchronous trainer; sampler.max_staleness, evaluation.every_steps",
        ),
        (
            "async_training.staleness_threshold",
            "a share of what is generated ahead, no number of versions: sampler.max_staleness",
        ),
        (
            "async_training.partial_rollout",
            "always so here: weights change under running sequences",
        ),
        (
            "async_training.*parameter_sync_step *parameter_sync_step",
            "every update is published here",
        ),
        (
            "async_training.use_rollout_log_probs",
            'learner.proximal = "behaviour" is that; it is "recompute" unless set',
        ),
        (
            "async_training.*",
            "of verl's fully asynchronous trainer; sampler.max_staleness bounds the age of tokens",
        ),
        (
            "trainer.v1.*",
            "sampler.max_staleness bounds the age of tokens; nothing is dropped for it",
        ),
        (
            "trainer.critic_warmup",
            "no warm-up of the critic alone",
        ),
        (
            "critic.*",
            "the critic is the learner's, of the policy's size: learner.critic_lr, learner.value_clip",
        ),
        (
            "algorithm.use_pf_ppo algorithm.pf_ppo.* algorithm.rollout_correction.*",
            "it has no counterpart (docs/algorithms.md)",
        ),
        (
            "algorithm.kl_ctrl.*",
            "no adaptive controller",
        ),
        (
            "reward_model.* reward.* custom_reward_function.*",
            "rewards are for kernels (reward.shape); no function of your own, no reward model",
        ),
        (
            "data.*_key data.return_raw_chat data.apply_chat_template_kwargs* data.prompt_dict_keys "
            "data.response_dict_keys",
            "task rows have fixed names (label, instance_id, extra_info), prompts are ours (episodes.prompt)",
        ),
        (
            "data.val_batch_size data.dataloader_num_workers data.sampler.* data.custom_cls.* data.*",
            "tasks come from tasks.train and tasks.heldout, in sampler.order",
        ),
        (
            "trainer.experiment_name",
            "run.name is at most 41 of a-z, 0-9 and -",
        ),
        (
            "trainer.default_local_dir trainer.default_hdfs_dir trainer.validation_data_dir trainer.rollout_data_dir",
            "all of a run lies in run.folder/run.name",
        ),
        (
            "trainer.resume_mode trainer.resume_from_path trainer.del_local_ckpt_after_load",
            "kernelmill up with the same run.name goes on by itself",
        ),
        (
            "trainer.val_before_train trainer.val_only",
            "before training: kernelmill evaluate",
        ),
        (
            "trainer.max_*ckpt_to_keep trainer.checkpoint.* actor_rollout_ref.actor.checkpoint.* "
            "*checkpoint.save_contents",
            "checkpoints hold everything; checkpoints.keep of them stay",
        ),
        (
            "trainer.log_val_generations",
            "the report shows kernels; docs/metrics.md has what is recorded",
        ),
        (
            "trainer.device",
            "learner.device is auto unless set",
        ),
        (
            "trainer.*",
            "no counterpart: kernelmill up starts a run's actors",
        ),
        (
            "ray_kwargs.* ray_init.* transfer_queue.*",
            "no Ray here: kernelmill up starts the actors",
        ),
        (
            "defaults",
            "other files of theirs are not read: only what stands in this one",
        ),
        (
            "config-path config-name config-dir",
            "a config file of theirs is not read: give that YAML file, for what it sets",
        ),
        (
            "hydra.* _target_ *._target_",
            "of hydra itself",
        ),
    ]
)
