"""The arguments of TRL's ``GRPOConfig``, each with its default, and its key of a run or the suggested replacement.

An argument with a ``Key`` sets keys of a run, alone or together with others (``run_values``), and is an error where it
would have no effect; a ``Fixed`` one takes the listed values only, and any other value is an error that names the
replacement.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from enum import Enum
from functools import wraps
from inspect import signature
from typing import Annotated, Any, TypeVar, final, get_type_hints

from mmgrpo.config.peers.peer import Peer
from mmgrpo.config.peers.texts import CLIPPED as CLIP
from mmgrpo.config.peers.texts import PROJECT
from mmgrpo.config.registry import did_you_mean
from mmgrpo.errors import ConfigError
from mmgrpo.system.yamls import parse_yaml
from mmgrpo.trl.script_arguments import KEYS, REPLACEMENTS, REWARDS, current_arguments

T = TypeVar("T")

CPU_DATA = "leave it out: prompts are read in the main process, without a data loader"
DDP = "leave it out: gradients are summed by mmgrpo, not by DistributedDataParallel"
LAUNCH = (
    "`accelerate launch --config_file FILE` for a script, or `mmgrpo train --accelerate fsdp2`, zero2 or zero3 for a "
    "YAML file"
)
LOADING = "load the model in Python, and pass it to the trainer"
LOGS = "leave it out: the run folder has all metrics of each update, and samples of rollout.saved_groups groups"
TWO_SIDED = "objective.surrogate: {name: two_sided_clipped, low: NUMBER, high: NUMBER, delta: NUMBER}"
ROWS = "rollout.prompts_per_step: the rows of a generation on all processes / num_generations"
MINIBATCHES = "update.minibatches: steps_per_generation / gradient_accumulation_steps"
HISTORY = "leave it out: metrics.jsonl has each step, and trainer.state.log_history those of a script"
PADDING = "leave it out: batches are padded to their longest row"
SERVER = "rollout.engine: {name: vllm, url: ADDRESS}"
WEIGHT = "advantage.estimators: [{name: sampler_weight_truncated, %s}]"
MASK = "advantage.filters: [{name: sampler_weight_within, %s}]"
LEVEL = "level: sequence"
UPLOAD = "`mmgrpo export RUN --push OWNER/NAME`, or save_model and `hf upload`"

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Losses with the clipped surrogate."""

ADAMW = ("adamw_torch_fused", "adamw_torch", "adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit")
"""Optimizers with moments and an epsilon of Adam."""

JSON_ARGUMENTS = ("model_init_kwargs", "chat_template_kwargs", "lr_scheduler_kwargs")
"""Arguments that may also be JSON texts."""


@final
@dataclass(frozen=True, slots=True)
class Key:
    """The keys that an argument sets.

    Attributes:
        keys: dotted keys of a run; without ``is_key`` the place where a run has its effect.
        copied: whether the value of the key is that of the argument; otherwise it depends on other arguments too.
        needs: another argument, and its values under which this one has an effect; without values: all but its default.
        also: a second such argument, with its values.
        is_key: whether it sets keys.
    """

    keys: str
    copied: bool = False
    needs: tuple[Any, ...] = ()
    also: tuple[Any, ...] = ()
    is_key: bool = True

    @property
    def in_yaml(self) -> str:
        """The keys."""
        return self.keys


@final
@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """An argument that takes only its default, and other values with the same result.

    Attributes:
        instead: the replacement of any other value: words, or keys of a run with their values in YAML.
        others: the other values.
        is_key: whether the replacement is keys, which ``overrides`` sets.
    """

    instead: str
    others: tuple[Any, ...]
    is_key: bool

    def __init__(self, instead: str, *others: Any, is_key: bool = False) -> None:
        """Takes the replacement, and the other values.

        Args:
            instead: the replacement.
            *others: the other values.
            is_key: whether the replacement is keys.
        """
        object.__setattr__(self, "instead", instead)
        object.__setattr__(self, "others", others)
        object.__setattr__(self, "is_key", is_key)

    @property
    def in_yaml(self) -> str:
        """The replacement for a YAML file."""
        return self.instead

    @property
    def in_python(self) -> str:
        """The replacement in a script: keys are those of ``overrides``."""
        return f"overrides={parse_yaml(self.instead)}" if self.is_key else self.instead


def _key_of_colocate(setting: str) -> Key:
    """A setting of the server that is started for the run, in place of TRL's vLLM in the training process."""
    keys = f"rollout.engine: {{name: vllm, python: ENV/bin/python, {setting}}}"
    return Key(keys, needs=("use_vllm", True), also=("vllm_mode", "colocate"))


def _key_of_option(option: str, value: str) -> Key:
    return _key_of_colocate(f'options: ["{option}", "{value}"]')


def _key_of_weight(*keys: str) -> Key:
    """Keys of the importance weights; the second ones are those of masks."""
    return Key(
        ", for a mask also ".join(keys),
        needs=("use_vllm", True),
        also=("vllm_importance_sampling_correction", True),
    )


ADDRESS = Key(
    "rollout.engine: {name: vllm, url: http://HOST:PORT}",
    needs=("vllm_mode", "server"),
    also=("vllm_server_base_url", None),
)
CAP = _key_of_weight(WEIGHT % "cap: NUMBER", MASK % "high: NUMBER")
BEST = Fixed("checkpoint.best: REWARD", is_key=True)
COMPILE = Fixed("policy.compile: true", is_key=True)
ADAPTIVE = Fixed("schedules: {objective.entropy_bonus: SCHEDULE}", is_key=True)
ROLLOUT_BATCH = Fixed("policy.rollout_batch: N", is_key=True)
CHECKPOINTING = Fixed("policy.gradient_checkpointing: true", is_key=True)


def with_trl_arguments(kind: type[T]) -> type[T]:
    """A class decorator: the constructor takes arguments by their names in earlier versions of TRL.

    Args:
        kind: the class.

    Returns:
        The class. Its constructor raises ConfigError for another argument; the message has its key, its replacement or
        the nearest names.
    """
    init, valid_names = kind.__init__, [*signature(kind).parameters]

    @wraps(init)
    def initialize(self: T, *positional: Any, **named: Any) -> None:
        arguments = current_arguments(named)
        if unknown := [name for name in arguments if name not in valid_names]:
            fixes = (_fix(name, valid_names) for name in unknown)
            pairs = zip(unknown, fixes, strict=True)
            raise ConfigError("; ".join(f"{kind.__name__} has no argument {name}{fix}" for name, fix in pairs))
        init(self, *positional, **arguments)

    kind.__init__ = initialize
    return kind


def _fix(name: str, valid_names: Sequence[str]) -> str:
    if name in PEER.settings:
        return f": {PEER.settings[name]}"
    return did_you_mean(name, valid_names) or ": leave it out"


@with_trl_arguments
@dataclass
class GRPOConfig:
    """The arguments of TRL 1.16's ``GRPOConfig``, with its names and defaults, for ``mmgrpo.trl.GRPOTrainer``.

    Attributes:
        overrides: keys of mmgrpo, dotted or nested, that replace those of the arguments.
    """

    output_dir: Annotated[str | None, Key("output")] = None
    _: KW_ONLY
    overrides: Mapping[str, Any] = field(default_factory=dict)

    seed: Annotated[int, Key("seed", copied=True)] = 42
    data_seed: Annotated[int | None, Fixed("leave it out: seed also orders the prompts")] = None
    use_cpu: Annotated[bool, Key("runtime.device: cpu")] = False
    full_determinism: Annotated[
        bool, Fixed("leave it out: random numbers are keyed by seed, step, prompt and member")
    ] = False

    # Steps and batches
    per_device_train_batch_size: Annotated[int, Key(ROWS)] = 8
    gradient_accumulation_steps: Annotated[int, Key(MINIBATCHES)] = 1
    generation_batch_size: Annotated[int | None, Key(ROWS)] = None
    steps_per_generation: Annotated[int | None, Key(f"{ROWS}, {MINIBATCHES}")] = None
    num_generations: Annotated[int, Key("rollout.group_size", copied=True)] = 8
    num_iterations: Annotated[int, Key("update.epochs", copied=True)] = 1
    max_steps: Annotated[int, Key("steps")] = -1
    num_train_epochs: Annotated[float, Key("steps: EPOCHS * rows / prompts_per_step", needs=("max_steps", -1))] = 3.0
    auto_find_batch_size: Annotated[bool, Fixed("a smaller per_device_train_batch_size, or policy.update_tokens")] = (
        False
    )
    average_tokens_across_devices: Annotated[bool, Fixed("leave it out: means are over the rows of all processes")] = (
        True
    )
    train_sampling_strategy: Annotated[str, Fixed("prompts.sampler: NAME", is_key=True)] = "random"
    shuffle_dataset: Annotated[bool, Key("prompts.sampler: {name: in_order} for false")] = True
    remove_unused_columns: Annotated[bool, Fixed("leave it out: rewards receive the columns that they name")] = False
    ignore_data_skip: Annotated[
        bool, Fixed("leave it out: a resumed run continues with the prompts of its next step")
    ] = False

    # Sampling
    max_completion_length: Annotated[int | None, Key("policy.max_new_tokens")] = 512
    temperature: Annotated[float, Key("policy.temperature", copied=True)] = 1.0
    top_p: Annotated[float, Key("policy.top_p")] = 1.0
    top_k: Annotated[int, Key("policy.top_k")] = 0
    min_p: Annotated[float | None, Key("policy.min_p", copied=True)] = None
    repetition_penalty: Annotated[float, Fixed("leave it out: samples are of the distribution that is trained")] = 1.0
    generation_kwargs: Annotated[dict | None, Fixed("policy.suppress: [TOKEN]", {}, is_key=True)] = None
    chat_template_kwargs: Annotated[dict | str | None, Key("policy.template")] = None
    max_tool_calling_iterations: Annotated[int | None, Key("rollout.max_turns")] = None
    cache_implementation: Annotated[str | None, COMPILE] = None
    use_transformers_continuous_batching: Annotated[bool, ROLLOUT_BATCH] = False
    transformers_continuous_batching_config: Annotated[dict | str | None, ROLLOUT_BATCH] = None
    use_transformers_paged: Annotated[bool, ROLLOUT_BATCH] = False
    use_vllm: Annotated[bool, Key(f"{SERVER}, or python: ENV/bin/python in place of url")] = False
    vllm_mode: Annotated[
        str, Key(f"{SERVER} for server, python: ENV/bin/python in place of url for colocate", needs=("use_vllm", True))
    ] = "colocate"
    vllm_model_impl: Annotated[str, _key_of_option("--model-impl", "transformers")] = "vllm"
    vllm_enable_sleep_mode: Annotated[bool, _key_of_colocate("sleep: true")] = False
    vllm_structured_outputs_regex: Annotated[
        str | None, Fixed("leave it out: samples are of the distribution that is trained")
    ] = None
    vllm_server_base_url: Annotated[str | None, Key(SERVER, needs=("vllm_mode", "server"))] = None
    vllm_server_host: Annotated[str, ADDRESS] = "0.0.0.0"
    vllm_server_port: Annotated[int, ADDRESS] = 8000
    vllm_server_timeout: Annotated[
        float, Key("rollout.engine: {name: vllm, url: ADDRESS, timeout_s: SECONDS}", needs=("vllm_mode", "server"))
    ] = 240.0
    vllm_group_port: Annotated[
        int, Fixed("leave it out: weights get to the server as files, or by NCCL without a fixed port")
    ] = 51216
    vllm_gpu_memory_utilization: Annotated[float, _key_of_option("--gpu-memory-utilization", "0.3")] = 0.3
    vllm_max_model_length: Annotated[int | None, _key_of_option("--max-model-len", "N")] = None
    vllm_tensor_parallel_size: Annotated[int, _key_of_option("--tensor-parallel-size", "N")] = 1
    vllm_importance_sampling_correction: Annotated[
        bool,
        Key(
            f"{WEIGHT % 'cap: 3.0, level: sequence'}, or a method in include: methods/sequence-mis for the default of "
            "vllm_importance_sampling_mode, mis, tis or sequence-tis",
            needs=("use_vllm", True),
        ),
    ] = True
    vllm_importance_sampling_mode: Annotated[str, _key_of_weight(WEIGHT % LEVEL, MASK % LEVEL)] = "sequence_mask"
    vllm_importance_sampling_clip_max: Annotated[float | None, CAP] = 3.0
    vllm_importance_sampling_clip_min: Annotated[float | None, _key_of_weight(MASK % "low: NUMBER")] = None
    vllm_importance_sampling_cap: Annotated[float | None, CAP] = None

    # Rewards and advantages
    reward_weights: Annotated[list[float] | None, Key("rewards[].weight")] = None
    scale_rewards: Annotated[
        str, Key("advantage.scale: group, batch or none", needs=("multi_objective_aggregation", "sum_then_normalize"))
    ] = "group"
    multi_objective_aggregation: Annotated[str, Key("advantage.scale: group, or gdpo for normalize_then_sum")] = (
        "sum_then_normalize"
    )

    # Loss
    loss_type: Annotated[
        str, Key("objective.surrogate and objective.aggregate, or a method: include: [methods/dapo]")
    ] = "dapo"
    epsilon: Annotated[float, Key(CLIP, needs=("loss_type", *CLIPPED))] = 0.2
    epsilon_high: Annotated[float | None, Key(CLIP, needs=("loss_type", *CLIPPED, "cispo"))] = None
    delta: Annotated[
        float | None,
        Key(
            TWO_SIDED,
            needs=("loss_type", *CLIPPED),
        ),
    ] = None
    sapo_temperature_pos: Annotated[
        float, Key("objective.surrogate.positive_temperature", needs=("loss_type", "sapo"))
    ] = 1.0
    sapo_temperature_neg: Annotated[
        float, Key("objective.surrogate.negative_temperature", needs=("loss_type", "sapo"))
    ] = 1.05
    vespo_k_pos: Annotated[float, Key("objective.surrogate.positive_power", needs=("loss_type", "vespo"))] = 2.0
    vespo_lambda_pos: Annotated[float, Key("objective.surrogate.positive_decay", needs=("loss_type", "vespo"))] = 3.0
    vespo_k_neg: Annotated[float, Key("objective.surrogate.negative_power", needs=("loss_type", "vespo"))] = 3.0
    vespo_lambda_neg: Annotated[float, Key("objective.surrogate.negative_decay", needs=("loss_type", "vespo"))] = 2.0
    importance_sampling_level: Annotated[str, Key("objective.ratio_level: token or sequence")] = "token"
    mask_truncated_completions: Annotated[bool, Key("objective.truncated: zero")] = False
    top_entropy_quantile: Annotated[float, Key("objective.selections: [{name: top_entropy, share: NUMBER}]")] = 1.0
    off_policy_mask_threshold: Annotated[
        float | None, Key("objective.selections: [{name: near_policy, limit: NUMBER}]")
    ] = None
    entropy_coef: Annotated[float, Key("objective.entropy_bonus", copied=True)] = 0.0
    use_adaptive_entropy: Annotated[bool, ADAPTIVE] = False
    entropy_coef_min: Annotated[float, ADAPTIVE] = 0.0
    entropy_coef_max: Annotated[float, ADAPTIVE] = 1.0
    entropy_coef_delta: Annotated[float, ADAPTIVE] = 0.005
    entropy_target: Annotated[float, ADAPTIVE] = 0.2
    beta: Annotated[float, Key("objective.kl.beta, objective.kl.divergence")] = 0.0
    use_bias_correction_kl: Annotated[bool, Key("objective.kl.ratio_level", needs=("beta",))] = True
    sync_ref_model: Annotated[bool, Key("update.reference: {ema: {decay: NUMBER, every: STEPS}}")] = False
    ref_model_mixup_alpha: Annotated[float, Key("update.reference.ema.decay", needs=("sync_ref_model", True))] = 0.6
    ref_model_sync_steps: Annotated[int, Key("update.reference.ema.every", needs=("sync_ref_model", True))] = 512
    label_smoothing_factor: Annotated[float, Fixed("leave it out: it is for supervised losses")] = 0.0

    # Optimizer
    learning_rate: Annotated[float, Key("update.optimizer.lr", copied=True)] = 1e-6
    adam_beta1: Annotated[float, Key("update.optimizer.betas", needs=("optim", *ADAMW))] = 0.9
    adam_beta2: Annotated[float, Key("update.optimizer.betas", needs=("optim", *ADAMW))] = 0.999
    adam_epsilon: Annotated[float, Key("update.optimizer.eps", needs=("optim", *ADAMW))] = 1e-8
    weight_decay: Annotated[float, Key("update.optimizer.weight_decay", copied=True)] = 0.0
    max_grad_norm: Annotated[float | None, Key("update.optimizer.max_grad_norm")] = 1.0
    lr_scheduler_type: Annotated[str, Key("update.optimizer.schedule: {name: linear}, constant or cosine")] = "linear"
    lr_scheduler_kwargs: Annotated[dict | str | None, Key("update.optimizer.schedule.end")] = None
    warmup_steps: Annotated[
        float,
        Key(
            "update.optimizer.schedule.warmup_steps",
            needs=("lr_scheduler_type", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr"),
        ),
    ] = 0
    optim: Annotated[str, Key("update.optimizer: {name: adamw_8bit}, adamw, adafactor or muon")] = "adamw_torch_fused"
    optim_args: Annotated[
        str | None, Fixed("leave it out: adam_beta1, adam_beta2, adam_epsilon and weight_decay apply")
    ] = None
    optim_target_modules: Annotated[None | str | list[str], Fixed("policy.lora.targets: [NAME]", is_key=True)] = None  # noqa: RUF036
    neftune_noise_alpha: Annotated[float | None, Fixed("leave it out: rollout and update use the same policy")] = None

    # Model and memory
    model_init_kwargs: Annotated[
        dict | str | None, Key("policy.revision, policy.dtype, policy.attention, policy.quantization_config")
    ] = None
    trust_remote_code: Annotated[bool, Fixed(LOADING)] = False
    router_aux_loss_coef: Annotated[
        float | None, Fixed("router_aux_loss_coef=0.0: there is no load-balancing loss", 0.0)
    ] = None
    disable_dropout: Annotated[bool, Fixed("leave it out: dropout is always off", True)] = False
    cast_lm_head_to_fp32: Annotated[bool, Fixed(LOADING)] = False
    bf16: Annotated[bool | None, Key("policy.dtype: bfloat16")] = None
    fp16: Annotated[bool, Key("policy.dtype: float16")] = False
    bf16_full_eval: Annotated[bool, Fixed("leave it out: evaluations sample as training does")] = False
    fp16_full_eval: Annotated[bool, Fixed("leave it out: evaluations sample as training does")] = False
    tf32: Annotated[bool | None, Fixed("torch.backends.cuda.matmul.allow_tf32 = True")] = None
    gradient_checkpointing: Annotated[bool, Key("policy.gradient_checkpointing", copied=True)] = True
    gradient_checkpointing_kwargs: Annotated[
        dict | str | None, Fixed("leave it out: checkpointing is not reentrant", {"use_reentrant": False})
    ] = None
    activation_checkpointing: Annotated[str | None, CHECKPOINTING] = None
    activation_checkpointing_kwargs: Annotated[dict | str | None, CHECKPOINTING] = None
    torch_compile: Annotated[bool, COMPILE] = False
    torch_compile_backend: Annotated[str | None, COMPILE] = None
    torch_compile_mode: Annotated[str | None, COMPILE] = None
    use_liger_kernel: Annotated[bool, Fixed(LOADING)] = False
    liger_kernel_config: Annotated[dict | str | None, Fixed(LOADING)] = None
    use_cache: Annotated[
        bool, Fixed("leave it out: decoding has a cache, and updates share that of the prompt", True)
    ] = False
    torch_empty_cache_steps: Annotated[int | None, Fixed("leave it out: memory is freed when it runs out")] = None
    pad_to_multiple_of: Annotated[int | str | None, Fixed(PADDING, None)] = "auto"

    # Processes
    ds3_gather_for_generation: Annotated[bool, Key("runtime.gather_for_rollout", copied=True)] = True
    fsdp: Annotated[Any, Fixed(LAUNCH)] = None
    fsdp_config: Annotated[dict | str | None, Fixed(LAUNCH)] = None
    deepspeed: Annotated[dict | str | None, Fixed(LAUNCH)] = None
    accelerator_config: Annotated[dict | str | None, Fixed(LAUNCH)] = None
    parallelism_config: Annotated[Any, Fixed(LAUNCH)] = None
    local_rank: Annotated[int, Fixed("leave it out: it is read from the environment")] = -1
    ddp_timeout: Annotated[int, Key("runtime.collective_timeout_s")] = 1800
    ddp_backend: Annotated[str | None, Fixed(DDP)] = None
    ddp_find_unused_parameters: Annotated[bool | None, Fixed(DDP, False, True)] = None
    ddp_bucket_cap_mb: Annotated[int | None, Fixed(DDP)] = None
    ddp_broadcast_buffers: Annotated[bool | None, Fixed(DDP)] = None
    ddp_static_graph: Annotated[bool | None, Fixed(DDP)] = None

    # Data loaders
    dataloader_drop_last: Annotated[bool, Fixed(CPU_DATA)] = False
    dataloader_num_workers: Annotated[int, Fixed(CPU_DATA)] = 0
    dataloader_pin_memory: Annotated[bool, Fixed(CPU_DATA)] = True
    dataloader_persistent_workers: Annotated[bool, Fixed(CPU_DATA)] = False
    dataloader_prefetch_factor: Annotated[int | None, Fixed(CPU_DATA)] = None
    dataloader_multiprocessing_context: Annotated[str | None, Fixed(CPU_DATA)] = None
    dataloader_in_order: Annotated[bool, Fixed(CPU_DATA)] = True
    length_column_name: Annotated[str, Fixed(CPU_DATA)] = "length"
    label_names: Annotated[list[str] | None, Fixed(CPU_DATA)] = None

    # Evaluation
    eval_strategy: Annotated[str, Key("evaluation.every")] = "no"
    eval_steps: Annotated[float | None, Key("evaluation.every", needs=("eval_strategy", "steps"))] = None
    num_generations_eval: Annotated[int | None, Key("evaluation.samples_per_prompt")] = None
    eval_on_start: Annotated[bool, Fixed("leave it out: a run with evaluations begins with an evaluation", True)] = (
        False
    )
    eval_delay: Annotated[float, Fixed("leave it out: the first evaluation is that before training")] = 0
    per_device_eval_batch_size: Annotated[int, ROLLOUT_BATCH] = 8
    prediction_loss_only: Annotated[bool, Fixed("leave it out: evaluations report rewards")] = False
    eval_do_concat_batches: Annotated[bool, Fixed("leave it out: evaluations report rewards")] = True
    eval_use_gather_object: Annotated[bool, Fixed("leave it out: evaluations report rewards")] = False
    eval_accumulation_steps: Annotated[int | None, Fixed("leave it out: evaluations report rewards")] = None
    include_for_metrics: Annotated[list[str], Fixed("leave it out: evaluations report rewards")] = field(
        default_factory=list
    )
    batch_eval_metrics: Annotated[bool, Fixed("leave it out: evaluations report rewards")] = False
    load_best_model_at_end: Annotated[bool, BEST] = False
    metric_for_best_model: Annotated[str | None, BEST] = None
    greater_is_better: Annotated[bool | None, BEST] = None
    do_train: Annotated[bool, Fixed("`mmgrpo train`, or train()", True)] = False
    do_eval: Annotated[bool, Fixed("evaluation.every, `mmgrpo evaluate RUN` or evaluate()", True)] = False
    do_predict: Annotated[bool, Fixed("`mmgrpo evaluate RUN` or evaluate()")] = False

    # Checkpoints
    save_strategy: Annotated[str, Key("checkpoint.every: STEPS, or null for no")] = "steps"
    save_steps: Annotated[float, Key("checkpoint.every", needs=("save_strategy", "steps"))] = 500
    save_total_limit: Annotated[int | None, Key("checkpoint.keep", copied=True)] = None
    save_only_model: Annotated[
        bool, Fixed("leave it out: a checkpoint has the full state; `mmgrpo export RUN` or save_model writes the model")
    ] = False
    save_on_each_node: Annotated[bool, Fixed("leave it out: the main process writes the run folder")] = False
    enable_jit_checkpoint: Annotated[bool, Fixed("leave it out: SIGTERM ends a run with a checkpoint", True)] = False
    restore_callback_states_from_checkpoint: Annotated[bool, Fixed("leave it out: there are no callbacks")] = False
    resume_from_checkpoint: Annotated[
        str | None, Fixed("`mmgrpo train --resume RUN`, or train(resume_from_checkpoint=FOLDER)")
    ] = None

    # Logs
    logging_strategy: Annotated[str, Key(HISTORY, is_key=False)] = "steps"
    logging_steps: Annotated[float, Key(HISTORY, needs=("logging_strategy", "steps"), is_key=False)] = 10
    report_to: Annotated[None | str | list[str], Key("runtime.trackers: [{name: wandb}]")] = "none"  # noqa: RUF036
    project: Annotated[str, Key(PROJECT, needs=("report_to",))] = "huggingface"
    run_name: Annotated[str | None, Key("about.name")] = None
    log_completions: Annotated[bool, Key("rollout.saved_groups")] = False
    num_completions_to_print: Annotated[int | None, Fixed(LOGS)] = None
    log_unique_prompts: Annotated[bool, Fixed(LOGS)] = False
    log_multimodal: Annotated[bool, Fixed(LOGS)] = True
    log_completions_hub_repo: Annotated[str | None, Fixed(UPLOAD)] = None
    logging_first_step: Annotated[bool, Fixed(LOGS)] = False
    logging_nan_inf_filter: Annotated[bool, Fixed(LOGS)] = True
    log_on_each_node: Annotated[bool, Fixed(LOGS)] = True
    log_level: Annotated[str, Fixed(LOGS)] = "passive"
    log_level_replica: Annotated[str, Fixed(LOGS)] = "warning"
    disable_tqdm: Annotated[bool | None, Fixed(LOGS, False)] = None
    include_num_input_tokens_seen: Annotated[str, Fixed(LOGS, False)] = "no"
    skip_memory_metrics: Annotated[bool, Fixed(LOGS)] = True
    debug: Annotated[str | list[str], Fixed(LOGS, [], None)] = ""
    trackio_space_id: Annotated[str | None, Fixed(UPLOAD)] = None
    trackio_bucket_id: Annotated[str | None, Fixed(UPLOAD)] = None
    trackio_static_space_id: Annotated[str | None, Fixed(UPLOAD)] = None
    push_to_hub: Annotated[bool, Fixed(UPLOAD)] = False
    hub_model_id: Annotated[str | None, Fixed(UPLOAD)] = None
    hub_token: Annotated[str | None, Fixed(UPLOAD)] = None
    hub_private_repo: Annotated[bool | None, Fixed(UPLOAD)] = None
    hub_strategy: Annotated[str, Fixed(UPLOAD)] = "every_save"
    hub_always_push: Annotated[bool, Fixed(UPLOAD)] = False
    hub_revision: Annotated[str | None, Fixed(UPLOAD)] = None

    def __post_init__(self) -> None:
        """Checks the arguments, and computes those that depend on others as TRL does.

        Raises:
            ConfigError: mmgrpo does not have the value of an argument, or two of them do not fit together.
        """
        for name in JSON_ARGUMENTS:  # of a command line
            if isinstance(value := getattr(self, name), str):
                setattr(self, name, _parsed(name, value))
        for name in ARGUMENTS:  # transformers' enumerations
            if isinstance(value := getattr(self, name), Enum):
                setattr(self, name, value.value)
        self.output_dir = "trainer_output" if self.output_dir is None else self.output_dir
        if isinstance(self.scale_rewards, bool):
            self.scale_rewards = "group" if self.scale_rewards else "none"
        if wrong := list(_unsupported(self)):
            raise ConfigError("; ".join(wrong))
        if self.vllm_importance_sampling_cap is not None:
            self.vllm_importance_sampling_clip_max = self.vllm_importance_sampling_cap
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


ARGUMENTS: Mapping[str, Key | Fixed] = {
    name: note
    for name, hint in get_type_hints(GRPOConfig, include_extras=True).items()
    for note in getattr(hint, "__metadata__", ())
}
"""The keys of each argument, or its replacement."""

PEER = Peer(
    name="TRL",
    keys={**{name: note.in_yaml for name, note in ARGUMENTS.items() if note.is_key}, **KEYS},
    replacements={**{name: note.in_yaml for name, note in ARGUMENTS.items() if not note.is_key}, **REPLACEMENTS},
    rewards=REWARDS,
)
"""All arguments of TRL's trainer and its scripts, for suggestions in YAML and for the page."""


def _unsupported(args: GRPOConfig) -> Iterator[str]:
    """A message for each fixed argument with another value, and for each argument without an effect."""
    defaults = {field.name: field.default if field.default is not MISSING else [] for field in fields(args)}
    for name, note in ARGUMENTS.items():
        value = getattr(args, name)
        if isinstance(note, Fixed) and value not in (defaults[name], *note.others):
            yield f"{name}={value!r} is not supported; instead: {note.in_python}"
        needs = (note.needs, note.also) if isinstance(note, Key) and value != defaults[name] else ()
        for other, *values in filter(None, needs):
            current = getattr(args, other)
            if current not in values if values else current == defaults[other]:
                where = f", only with {', '.join(map(repr, values))}" if values else ""
                yield f"{name}={value!r} has no effect with {other}={current!r}{where}: leave it out"
                break
    cap, highest = args.vllm_importance_sampling_cap, args.vllm_importance_sampling_clip_max
    if cap is not None and highest not in (defaults["vllm_importance_sampling_clip_max"], cap):
        yield (
            f"vllm_importance_sampling_cap={cap!r} and vllm_importance_sampling_clip_max={highest!r} are two forms of "
            "one number: set the second one"
        )
    corrects_kl = args.beta and args.use_bias_correction_kl
    if args.importance_sampling_level == "sequence" and args.loss_type == "vespo" and not corrects_kl:
        yield (
            "importance_sampling_level='sequence' has no effect with loss_type='vespo', only with beta and "
            "use_bias_correction_kl: leave it out"
        )


def _parsed(name: str, text: str) -> dict[str, Any]:
    """The mapping of a JSON text. Raises ConfigError if it is none."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}={text!r} must be a JSON object")
    return value
