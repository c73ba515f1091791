# ruff: noqa: RUF009  (the functions below make fields)
"""The arguments of TRL's ``GRPOConfig``, each with its default, and its key of a run or the suggested replacement.

``copied`` sets a key to the value, ``computed`` arguments set keys together with others (``run_values``), and ``fixed``
ones take the listed values only: any other value is an error that says what to use instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from typing import Any

from mmgrpo.errors import ConfigError

CPU_DATA = "leave it out: prompts are read in the main process, without a data loader"
DDP = "leave it out: gradients are summed by mmgrpo, not by DistributedDataParallel"
HUB = "save the model with save_model, and upload the folder with `hf upload`"
VLLM = "leave it out: transformers generates in the training process, with the weights that are trained"
LAUNCH = "start the script with `accelerate launch --config_file`, where the file names the engine"
LOADING = "load the model yourself, and pass it as the argument model"
LOGS = "leave it out: the run folder has all metrics of each update, and overrides={'rollout.saved_groups': N} samples"
BEST = "overrides={'checkpoint.best': REWARD} keeps the checkpoint with the highest mean of a reward"
COMPILE = "overrides={'policy.compile': True}"
PADDING = "leave it out: batches are padded to their longest row"
ADAPTIVE = "a schedule of objective.entropy_bonus in overrides={'schedules': {...}}"


def copied(key: str, default: Any) -> Any:
    """An argument whose value is that of a key."""
    return field(default=default, metadata={"key": key, "copied": True})


def computed(keys: str, default: Any) -> Any:
    """An argument that sets keys together with others."""
    return field(default=default, metadata={"key": keys})


def fixed(default: Any, instead: str, *others: Any) -> Any:
    """An argument that takes only its default, and ``others``, which have the same result."""
    metadata = {"instead": instead, "others": others}
    if isinstance(default, list):
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class GRPOConfig:
    """The arguments of TRL 1.16's ``GRPOConfig``, with its names and defaults, for ``mmgrpo.trl.GRPOTrainer``.

    Attributes:
        overrides: keys of mmgrpo, dotted or nested, that replace those of the arguments.
    """

    output_dir: str | None = computed("output", None)
    _: KW_ONLY
    overrides: Mapping[str, Any] = field(default_factory=dict)

    seed: int = copied("seed", 42)
    data_seed: int | None = fixed(None, "leave it out: seed also orders the prompts")
    use_cpu: bool = computed("runtime.device", False)
    full_determinism: bool = fixed(False, "leave it out: random numbers are keyed by seed, step, prompt and member")

    # Steps and batches
    per_device_train_batch_size: int = computed("rollout.prompts_per_step, update.minibatches", 8)
    gradient_accumulation_steps: int = computed("update.minibatches", 1)
    generation_batch_size: int | None = computed("rollout.prompts_per_step", None)
    steps_per_generation: int | None = computed("rollout.prompts_per_step, update.minibatches", None)
    num_generations: int = copied("rollout.group_size", 8)
    num_iterations: int = copied("update.epochs", 1)
    max_steps: int = computed("steps", -1)
    num_train_epochs: float = computed("steps", 3.0)
    auto_find_batch_size: bool = fixed(False, "lower per_device_train_batch_size")
    average_tokens_across_devices: bool = fixed(True, "leave it out: means are over the rows of all processes")
    train_sampling_strategy: str = fixed("random", "shuffle_dataset=False, or overrides={'prompts.sampler': NAME}")
    shuffle_dataset: bool = copied("prompts.shuffle", True)
    remove_unused_columns: bool = fixed(False, "leave it out: rewards receive the columns that they name")
    ignore_data_skip: bool = fixed(False, "leave it out: a resumed run continues with the prompts of its next step")

    # Sampling
    max_completion_length: int | None = computed("policy.max_new_tokens", 512)
    temperature: float = copied("policy.temperature", 1.0)
    top_p: float = computed("policy.top_p", 1.0)
    top_k: int = computed("policy.top_k", 0)
    min_p: float | None = copied("policy.min_p", None)
    repetition_penalty: float = fixed(1.0, "leave it out: samples are of the distribution that is trained")
    generation_kwargs: dict | None = fixed(None, "overrides={'policy.suppress': [...]} for suppressed tokens", {})
    chat_template_kwargs: dict | None = computed("policy.template", None)
    max_tool_calling_iterations: int | None = computed("rollout.max_turns", None)
    cache_implementation: str | None = fixed(None, f"{COMPILE} for a static cache")
    use_transformers_continuous_batching: bool = fixed(
        False, "leave it out, and overrides={'policy.rollout_batch': N} for the rows per batch"
    )
    transformers_continuous_batching_config: dict | str | None = fixed(
        None, "leave it out, and overrides={'policy.rollout_batch': N} for the rows per batch"
    )
    use_transformers_paged: bool = fixed(False, "leave it out")
    use_vllm: bool = fixed(False, VLLM)
    vllm_mode: str = fixed("colocate", VLLM)
    vllm_model_impl: str = fixed("vllm", VLLM)
    vllm_enable_sleep_mode: bool = fixed(False, VLLM)
    vllm_structured_outputs_regex: str | None = fixed(None, VLLM)
    vllm_server_base_url: str | None = fixed(None, VLLM)
    vllm_server_host: str = fixed("0.0.0.0", VLLM)
    vllm_server_port: int = fixed(8000, VLLM)
    vllm_server_timeout: float = fixed(240.0, VLLM)
    vllm_group_port: int = fixed(51216, VLLM)
    vllm_gpu_memory_utilization: float = fixed(0.3, VLLM)
    vllm_max_model_length: int | None = fixed(None, VLLM)
    vllm_tensor_parallel_size: int = fixed(1, VLLM)
    vllm_importance_sampling_correction: bool = fixed(True, VLLM, False)
    vllm_importance_sampling_mode: str = fixed("sequence_mask", VLLM)
    vllm_importance_sampling_clip_max: float | None = fixed(3.0, VLLM)
    vllm_importance_sampling_clip_min: float | None = fixed(None, VLLM)
    vllm_importance_sampling_cap: float | None = fixed(None, VLLM)

    # Rewards and advantages
    reward_weights: list[float] | None = computed("rewards[].weight", None)
    scale_rewards: str | bool = computed("advantage.scale", "group")
    multi_objective_aggregation: str = computed("advantage.scale", "sum_then_normalize")

    # Loss
    loss_type: str = computed("objective.surrogate, objective.aggregate", "dapo")
    epsilon: float = computed("objective.surrogate.low", 0.2)
    epsilon_high: float | None = computed("objective.surrogate.high", None)
    delta: float | None = computed("objective.surrogate.delta", None)
    sapo_temperature_pos: float = computed("objective.surrogate.positive_temperature", 1.0)
    sapo_temperature_neg: float = computed("objective.surrogate.negative_temperature", 1.05)
    vespo_k_pos: float = computed("objective.surrogate.positive_power", 2.0)
    vespo_lambda_pos: float = computed("objective.surrogate.positive_decay", 3.0)
    vespo_k_neg: float = computed("objective.surrogate.negative_power", 3.0)
    vespo_lambda_neg: float = computed("objective.surrogate.negative_decay", 2.0)
    importance_sampling_level: str = computed("objective.ratio_level", "token")
    mask_truncated_completions: bool = computed("objective.truncated", False)
    top_entropy_quantile: float = computed("objective.selections", 1.0)
    off_policy_mask_threshold: float | None = computed("objective.selections", None)
    entropy_coef: float = copied("objective.entropy_bonus", 0.0)
    use_adaptive_entropy: bool = fixed(False, ADAPTIVE)
    entropy_coef_min: float = fixed(0.0, ADAPTIVE)
    entropy_coef_max: float = fixed(1.0, ADAPTIVE)
    entropy_coef_delta: float = fixed(0.005, ADAPTIVE)
    entropy_target: float = fixed(0.2, ADAPTIVE)
    beta: float = computed("objective.kl.beta, objective.kl.divergence", 0.0)
    use_bias_correction_kl: bool = computed("objective.kl.ratio_level", True)
    sync_ref_model: bool = computed("update.reference", False)
    ref_model_mixup_alpha: float = computed("update.reference.ema.decay", 0.6)
    ref_model_sync_steps: int = computed("update.reference.ema.every", 512)
    label_smoothing_factor: float = fixed(0.0, "leave it out: it is for supervised losses")

    # Optimizer
    learning_rate: float = copied("update.optimizer.lr", 1e-6)
    adam_beta1: float = computed("update.optimizer.betas", 0.9)
    adam_beta2: float = computed("update.optimizer.betas", 0.999)
    adam_epsilon: float = copied("update.optimizer.eps", 1e-8)
    weight_decay: float = copied("update.optimizer.weight_decay", 0.0)
    max_grad_norm: float | None = computed("update.optimizer.max_grad_norm", 1.0)
    lr_scheduler_type: str = computed("update.optimizer.schedule", "linear")
    lr_scheduler_kwargs: dict | str | None = computed("update.optimizer.schedule.floor", None)
    warmup_steps: float = computed("update.optimizer.schedule.warmup_steps", 0)
    optim: str = fixed("adamw_torch_fused", "leave it out: the optimizer is AdamW", "adamw_torch")
    optim_args: str | None = fixed(None, "leave it out: adam_beta1, adam_beta2, adam_epsilon and weight_decay apply")
    optim_target_modules: str | list[str] | None = fixed(None, "peft_config with target_modules")
    neftune_noise_alpha: float | None = fixed(None, "leave it out: rollout and update use the same policy")

    # Model and memory
    model_init_kwargs: dict | str | None = computed("policy.revision, policy.dtype, policy.attention", None)
    trust_remote_code: bool = fixed(False, LOADING)
    router_aux_loss_coef: float | None = fixed(None, "router_aux_loss_coef=0.0: there is no load-balancing loss", 0.0)
    disable_dropout: bool = fixed(False, "leave it out: dropout is always off", True)
    cast_lm_head_to_fp32: bool = fixed(False, LOADING)
    bf16: bool | None = computed("policy.dtype", None)
    fp16: bool = fixed(False, "bf16=True, or bf16=False for float32: float16 needs a loss scaler")
    bf16_full_eval: bool = fixed(False, "leave it out: evaluations sample as training does")
    fp16_full_eval: bool = fixed(False, "leave it out: evaluations sample as training does")
    tf32: bool | None = fixed(None, "torch.backends.cuda.matmul.allow_tf32 = True")
    gradient_checkpointing: bool = copied("policy.gradient_checkpointing", True)
    gradient_checkpointing_kwargs: dict | str | None = fixed(
        None, "leave it out: checkpointing is not reentrant", {"use_reentrant": False}
    )
    activation_checkpointing: str | None = fixed(None, "gradient_checkpointing")
    activation_checkpointing_kwargs: dict | str | None = fixed(None, "gradient_checkpointing")
    torch_compile: bool = fixed(False, COMPILE)
    torch_compile_backend: str | None = fixed(None, COMPILE)
    torch_compile_mode: str | None = fixed(None, COMPILE)
    use_liger_kernel: bool = fixed(False, LOADING)
    liger_kernel_config: dict | str | None = fixed(None, LOADING)
    use_cache: bool = fixed(False, "leave it out: decoding has a cache, and updates share that of the prompt", True)
    torch_empty_cache_steps: int | None = fixed(None, "leave it out: memory is freed when it runs out")
    pad_to_multiple_of: int | str | None = fixed("auto", PADDING, None)

    # Processes
    ds3_gather_for_generation: bool = copied("runtime.gather_for_rollout", True)
    fsdp: Any = fixed(None, LAUNCH)
    fsdp_config: dict | str | None = fixed(None, LAUNCH)
    deepspeed: dict | str | None = fixed(None, LAUNCH)
    accelerator_config: dict | str | None = fixed(None, LAUNCH)
    parallelism_config: Any = fixed(None, LAUNCH)
    local_rank: int = fixed(-1, "leave it out: it is read from the environment")
    ddp_timeout: int = computed("runtime.collective_timeout_s", 1800)
    ddp_backend: str | None = fixed(None, DDP)
    ddp_find_unused_parameters: bool | None = fixed(None, DDP, False, True)
    ddp_bucket_cap_mb: int | None = fixed(None, DDP)
    ddp_broadcast_buffers: bool | None = fixed(None, DDP)
    ddp_static_graph: bool | None = fixed(None, DDP)

    # Data loaders
    dataloader_drop_last: bool = fixed(False, CPU_DATA)
    dataloader_num_workers: int = fixed(0, CPU_DATA)
    dataloader_pin_memory: bool = fixed(True, CPU_DATA)
    dataloader_persistent_workers: bool = fixed(False, CPU_DATA)
    dataloader_prefetch_factor: int | None = fixed(None, CPU_DATA)
    dataloader_multiprocessing_context: str | None = fixed(None, CPU_DATA)
    dataloader_in_order: bool = fixed(True, CPU_DATA)
    length_column_name: str = fixed("length", CPU_DATA)
    label_names: list[str] | None = fixed(None, CPU_DATA)

    # Evaluation
    eval_strategy: str = computed("evaluation.every", "no")
    eval_steps: float | None = computed("evaluation.every", None)
    num_generations_eval: int | None = computed("evaluation.samples_per_prompt", None)
    eval_on_start: bool = fixed(False, "leave it out: a run with evaluations begins with an evaluation", True)
    eval_delay: float = fixed(0, "eval_steps")
    per_device_eval_batch_size: int = fixed(8, "overrides={'policy.rollout_batch': N} for the rows per batch")
    prediction_loss_only: bool = fixed(False, "leave it out: evaluations report rewards")
    eval_do_concat_batches: bool = fixed(True, "leave it out: evaluations report rewards")
    eval_use_gather_object: bool = fixed(False, "leave it out: evaluations report rewards")
    eval_accumulation_steps: int | None = fixed(None, "leave it out: evaluations report rewards")
    include_for_metrics: list[str] = fixed([], "leave it out: evaluations report rewards")
    batch_eval_metrics: bool = fixed(False, "leave it out: evaluations report rewards")
    load_best_model_at_end: bool = fixed(False, BEST)
    metric_for_best_model: str | None = fixed(None, BEST)
    greater_is_better: bool | None = fixed(None, BEST)
    do_train: bool = fixed(False, "call train()", True)
    do_eval: bool = fixed(False, "eval_strategy, or call evaluate()", True)
    do_predict: bool = fixed(False, "call evaluate()")

    # Checkpoints
    save_strategy: str = computed("checkpoint.every", "steps")
    save_steps: float = computed("checkpoint.every", 500)
    save_total_limit: int | None = copied("checkpoint.keep", None)
    save_only_model: bool = fixed(False, "save_strategy='no' with save_model: a checkpoint has the full state")
    save_on_each_node: bool = fixed(False, "leave it out: the main process writes the run folder")
    enable_jit_checkpoint: bool = fixed(False, "leave it out: SIGTERM ends a run with a checkpoint", True)
    restore_callback_states_from_checkpoint: bool = fixed(False, "leave it out: there are no callbacks")
    resume_from_checkpoint: str | None = fixed(None, "train(resume_from_checkpoint=FOLDER)")

    # Logs
    logging_strategy: str = computed("trainer.state.log_history", "steps")
    logging_steps: float = computed("trainer.state.log_history", 10)
    report_to: str | list[str] | None = computed("runtime.trackers", "none")
    project: str = copied("runtime.project", "huggingface")
    run_name: str | None = computed("about.name", None)
    log_completions: bool = computed("rollout.saved_groups", False)
    num_completions_to_print: int | None = fixed(None, LOGS)
    log_unique_prompts: bool = fixed(False, LOGS)
    log_multimodal: bool = fixed(True, LOGS)
    log_completions_hub_repo: str | None = fixed(None, HUB)
    logging_first_step: bool = fixed(False, LOGS)
    logging_nan_inf_filter: bool = fixed(True, LOGS)
    log_on_each_node: bool = fixed(True, LOGS)
    log_level: str = fixed("passive", LOGS)
    log_level_replica: str = fixed("warning", LOGS)
    disable_tqdm: bool | None = fixed(None, LOGS, False)
    include_num_input_tokens_seen: str | bool = fixed("no", LOGS, False)
    skip_memory_metrics: bool = fixed(True, LOGS)
    debug: str | list[str] = fixed("", LOGS, [])
    trackio_space_id: str | None = fixed(None, HUB)
    trackio_bucket_id: str | None = fixed(None, HUB)
    trackio_static_space_id: str | None = fixed(None, HUB)
    push_to_hub: bool = fixed(False, HUB)
    hub_model_id: str | None = fixed(None, HUB)
    hub_token: str | None = fixed(None, HUB)
    hub_private_repo: bool | None = fixed(None, HUB)
    hub_strategy: str = fixed("every_save", HUB)
    hub_always_push: bool = fixed(False, HUB)
    hub_revision: str | None = fixed(None, HUB)

    def __post_init__(self) -> None:
        """Checks the arguments, and computes those that depend on others as TRL does.

        Raises:
            ConfigError: mmgrpo does not have the value of an argument, or two of them do not fit together.
        """
        if wrong := list(_unsupported(self)):
            raise ConfigError("; ".join(wrong))
        self.output_dir = "trainer_output" if self.output_dir is None else self.output_dir
        self.scale_rewards = {True: "group", False: "none"}.get(self.scale_rewards, self.scale_rewards)  # pyright: ignore[reportArgumentType, reportCallIssue]
        batch_size = self.per_device_train_batch_size * self.world_size
        if self.generation_batch_size is not None and self.steps_per_generation is not None:
            raise ConfigError("generation_batch_size and steps_per_generation are two forms of one number: set one")
        if self.generation_batch_size is None:
            self.steps_per_generation = self.steps_per_generation or self.gradient_accumulation_steps
            self.generation_batch_size = batch_size * self.steps_per_generation
        if self.generation_batch_size % batch_size:
            raise ConfigError(
                f"generation_batch_size={self.generation_batch_size} must be a multiple of per_device_train_batch_size "
                f"times the number of processes, {batch_size}"
            )
        self.steps_per_generation = self.generation_batch_size // batch_size
        if self.generation_batch_size % self.num_generations:
            raise ConfigError(
                f"generation_batch_size={self.generation_batch_size} must be a multiple of num_generations="
                f"{self.num_generations}: a generation has complete groups"
            )

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return int(os.environ.get("WORLD_SIZE", "1"))


ARGUMENTS: Mapping[str, Field[Any]] = {argument.name: argument for argument in fields(GRPOConfig)}
"""The arguments by name; ``metadata`` has the keys or the suggested replacement."""


def _unsupported(args: GRPOConfig) -> Iterator[str]:
    """A message for each fixed argument with another value."""
    for name, argument in ARGUMENTS.items():
        value, metadata = getattr(args, name), argument.metadata
        if "instead" not in metadata:
            continue
        default = [] if argument.default is MISSING else argument.default
        if value not in (default, *metadata["others"]):
            yield f"{name}={value!r} is not supported; instead: {metadata['instead']}"
