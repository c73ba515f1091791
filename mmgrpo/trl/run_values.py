"""The arguments of TRL's ``GRPOConfig`` as the keys of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from mmgrpo.errors import ConfigError
from mmgrpo.trl.arguments import ADAMW, ARGUMENTS, CLIPPED, GRPOConfig, Key
from mmgrpo.trl.vllm_values import vllm_differences, vllm_values

TOKEN_MEANS = ("bnpo", "cispo", "dapo", "vespo")
LR_SCHEDULERS = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
TRACKERS = ("tensorboard", "wandb", "trackio")
DTYPES = ("float32", "bfloat16", "float16")
LOADING = ("revision", "attn_implementation", "dtype", "quantization_config", "device_map", "trust_remote_code")
"""Arguments of ``from_pretrained`` that a run reads."""

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "adamw_torch_fused": {},
    "adamw_torch": {},
    "adamw_8bit": {"name": "adamw_8bit"},
    "adamw_bnb_8bit": {"name": "adamw_8bit"},
    "paged_adamw_8bit": {"name": "adamw_8bit", "paged": True},
    "adafactor": {"name": "adafactor"},
}
"""The settings of ``update.optimizer`` for values of ``optim``, without the numbers of Adam."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The numbers of a run that do not come from its arguments.

    Attributes:
        num_prompts: rows of the training dataset; None: an environment writes the prompts.
        is_conversational: whether a prompt is a list of messages.
        has_tools: whether there are tools or environments.
    """

    num_prompts: int | None
    is_conversational: bool
    has_tools: bool


def run_values(args: GRPOConfig, data: TrainingData) -> dict[str, Any]:
    """The values of a run by dotted key.

    Args:
        args: the arguments.
        data: what they are applied to.

    Returns:
        The values, those of ``policy`` among them.

    Raises:
        ConfigError: mmgrpo does not have a value, or a combination of values.
    """
    copied = {
        note.keys: getattr(args, name) for name, note in ARGUMENTS.items() if isinstance(note, Key) and note.copied
    }
    steps = _Steps.of(args, data)
    return {
        **copied,
        "output": str(args.output_dir),
        "about.name": args.run_name or "run",
        "steps": steps.total,
        "prompts.sampler": None if args.shuffle_dataset else {"name": "in_order"},
        "rollout.prompts_per_step": steps.prompts_per_step,
        "update.minibatches": steps.minibatches,
        "runtime.device": "cpu" if args.use_cpu else None,
        "runtime.collective_timeout_s": float(args.ddp_timeout),
        "runtime.trackers": _trackers(args),
        "checkpoint.every": steps.between("save_strategy", "save_steps"),
        "rollout.saved_groups": steps.prompts_per_step if args.log_completions else 2,
        **_sampling(args, data),
        **_advantage(args),
        **vllm_values(args),
        **objective_values(args),
        **_reference(args, steps),
        **_optimizer(args, steps),
        **dict(args.overrides),
    }


def evaluation_values(args: GRPOConfig, data: TrainingData, source: str | None = None) -> dict[str, Any]:
    """The section ``evaluation`` of held-out prompts.

    Args:
        args: the arguments.
        data: what they are applied to.
        source: source of the evaluation dataset; None: it is passed to the trainer.

    Returns:
        The values.

    Raises:
        ConfigError: as ``run_values``.
    """
    return {
        "prompts": {} if source is None else {"source": source},
        "samples_per_prompt": args.num_generations_eval or args.num_generations,
        "every": _Steps.of(args, data).between("eval_strategy", "eval_steps") or 1,
        "sampled": True,
    }


def log_interval(args: GRPOConfig, data: TrainingData) -> int:
    """Updates per entry of the log history.

    Args:
        args: the arguments.
        data: what they are applied to.

    Returns:
        The number; 0: no entries.

    Raises:
        ConfigError: as ``run_values``.
    """
    return _Steps.of(args, data).updates_between("logging_strategy", "logging_steps") or 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Numbers of steps, each a generation with its optimizer updates, where TRL counts updates.

    Attributes:
        args: the arguments.
        prompts_per_step: groups of a step.
        minibatches: updates per pass over a step.
        per_epoch: steps per pass over the dataset; None: there is no dataset.
    """

    args: GRPOConfig
    prompts_per_step: int
    minibatches: int
    per_epoch: int | None

    @classmethod
    def of(cls, args: GRPOConfig, data: TrainingData) -> _Steps:
        """The numbers of some arguments. Raises ConfigError if an update has no complete generation or groups."""
        assert args.generation_batch_size is not None
        assert args.steps_per_generation is not None
        minibatches, rest = divmod(args.steps_per_generation, args.gradient_accumulation_steps)
        prompts_per_step = args.generation_batch_size // args.num_generations
        if rest:
            raise ConfigError(
                f"steps_per_generation={args.steps_per_generation} must be a multiple of gradient_accumulation_steps="
                f"{args.gradient_accumulation_steps}: an update is of rows of one generation. Set generation_batch_size"
            )
        if minibatches > prompts_per_step:
            raise ConfigError(
                f"{minibatches} updates per generation need as many groups, and generation_batch_size="
                f"{args.generation_batch_size} has {prompts_per_step}: a minibatch consists of complete groups. Raise "
                "gradient_accumulation_steps or lower num_generations"
            )
        per_epoch = None if data.num_prompts is None else data.num_prompts // prompts_per_step
        return cls(args=args, prompts_per_step=prompts_per_step, minibatches=minibatches, per_epoch=per_epoch)

    @property
    def updates(self) -> int:
        """Optimizer updates of a step."""
        return self.minibatches * self.args.num_iterations

    @property
    def total(self) -> int:
        """Steps of the run. Raises ConfigError if there are none, or the last one is not complete."""
        if self.args.max_steps > 0:
            if self.args.max_steps % self.updates:
                raise ConfigError(
                    f"max_steps={self.args.max_steps} must be a multiple of {self.updates}, the updates per generation"
                )
            return self.args.max_steps // self.updates
        if self.per_epoch is None:
            raise ConfigError("max_steps must be set where the environment writes the prompts")
        if not self.per_epoch:
            raise ConfigError(
                f"the dataset has fewer rows than the {self.prompts_per_step} prompts of a generation "
                "(generation_batch_size / num_generations): lower generation_batch_size, or set max_steps"
            )
        return math.ceil(self.args.num_train_epochs * self.per_epoch)

    def updates_between(self, strategy: str, interval: str) -> int | None:
        """Updates between two events of a strategy; None: never. Raises ConfigError for another strategy."""
        name, value = getattr(self.args, strategy), getattr(self.args, interval)
        if name == "no":
            return None
        if name == "epoch":
            if self.per_epoch is None:
                raise ConfigError(f"{strategy}='epoch' needs train_dataset; without one, use 'steps'")
            return max(self.per_epoch, 1) * self.updates
        if name != "steps":
            raise ConfigError(f"{strategy}={name!r} must be 'no', 'steps' or 'epoch'")
        value = self.args.logging_steps if value is None else value
        if value <= 0:
            raise ConfigError(f"{interval}={value} must be above 0; {strategy}='no' turns it off")
        return math.ceil(value if value >= 1 else value * self.total * self.updates)

    def between(self, strategy: str, interval: str) -> int | None:
        """Steps between two events of a strategy, rounded up to complete steps; None: never."""
        updates = self.updates_between(strategy, interval)
        return None if updates is None else math.ceil(updates / self.updates)


def _trackers(args: GRPOConfig) -> list[dict[str, str]]:
    names = [args.report_to] if isinstance(args.report_to, str) else list(args.report_to or [])
    if unknown := [name for name in names if name not in (*TRACKERS, "none")]:
        raise ConfigError(f"report_to has {', '.join(unknown)}; supported are {', '.join(TRACKERS)} and none")
    return [{"name": name, "project": args.project} for name in names if name != "none"]


def _sampling(args: GRPOConfig, data: TrainingData) -> dict[str, Any]:
    if args.max_completion_length is None:
        raise ConfigError("max_completion_length must be set: it bounds the memory of a run")
    rows = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    values: dict[str, Any] = {
        "policy.max_new_tokens": args.max_completion_length,
        "policy.top_p": None if args.top_p == 1 else args.top_p,
        "policy.top_k": args.top_k or None,
        "policy.template": args.chat_template_kwargs or {},
        "policy.chat": None if data.is_conversational else False,
        "policy.rollout_batch": rows,
        "policy.dtype": _dtype(args),
    }
    if args.max_tool_calling_iterations is not None and not data.has_tools:
        raise ConfigError("max_tool_calling_iterations needs tools or environment_factory: leave it out")
    if args.chat_template_kwargs and not data.is_conversational:
        raise ConfigError("chat_template_kwargs needs prompts that are lists of messages: leave it out")
    if data.has_tools:  # a turn has a token or more, so that there are no more turns than tokens
        calls = args.max_tool_calling_iterations
        values["rollout.max_turns"] = args.max_completion_length if calls is None else calls + 1
    return values | _loading(args)


def _dtype(args: GRPOConfig) -> str:
    if args.fp16 and args.bf16:
        raise ConfigError("fp16 and bf16 exclude each other: leave one of them out")
    return "float16" if args.fp16 else "float32" if args.bf16 is False else "bfloat16"


def _loading(args: GRPOConfig) -> dict[str, Any]:
    loading = dict(args.model_init_kwargs) if isinstance(args.model_init_kwargs, Mapping) else {}
    dtype = str(loading.pop("dtype", "float32")).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ConfigError(f"model_init_kwargs: dtype {dtype!r} is not supported; use {', '.join(DTYPES)}")
    if dtype == "float16" and not args.fp16:
        raise ConfigError("model_init_kwargs: dtype float16 needs fp16=True: its gradients are scaled")
    quantization = loading.pop("quantization_config", None)
    keys = {"revision": "policy.revision", "attn_implementation": "policy.attention"}
    if loading.pop("device_map", None) not in (None, "auto"):
        raise ConfigError("model_init_kwargs: device_map must be 'auto' or None: accelerate places the model")
    if unknown := [name for name in loading if name not in LOADING]:
        raise ConfigError(
            f"model_init_kwargs: {', '.join(unknown)} cannot be passed on; load the model, and pass it as model"
        )
    if loading.get("trust_remote_code"):
        raise ConfigError("model_init_kwargs: code of a checkpoint is not executed; load the model yourself")
    values = {key: loading[name] for name, key in keys.items() if name in loading}
    values |= {} if quantization is None else {"policy.quantization_config": quantization_settings(quantization)}
    return values | ({} if dtype == "float32" else {"policy.dtype": dtype})


def quantization_settings(quantization: Any) -> dict[str, Any]:
    """The section ``policy.quantization_config`` of a configuration of transformers.

    Args:
        quantization: a ``BitsAndBytesConfig``, or the arguments of any configuration of transformers.

    Returns:
        The arguments, those of an object without defaults but the dtype of 4-bit layers, which is policy.dtype without
        it.

    Raises:
        ConfigError: it is neither.
    """
    if type(quantization).__name__ == "BitsAndBytesConfig":  # transformers takes seconds to import
        quantization = {name: value for name, value in quantization.to_diff_dict().items() if not name.startswith("_")}
    if not isinstance(quantization, Mapping):
        kind = type(quantization).__name__
        raise ConfigError(f"quantization_config must be a BitsAndBytesConfig or a mapping of arguments, got {kind}")
    computes = {"bnb_4bit_compute_dtype": "float32"} if quantization.get("load_in_4bit") else {}
    return computes | dict(quantization)


def _advantage(args: GRPOConfig) -> dict[str, Any]:
    if args.multi_objective_aggregation == "normalize_then_sum":
        return {"advantage.scale": {"name": "gdpo", "correction": 1}}
    if args.multi_objective_aggregation != "sum_then_normalize":
        raise ConfigError(
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} must be 'sum_then_normalize' or "
            "'normalize_then_sum'"
        )
    if args.scale_rewards not in ("group", "batch", "none"):
        raise ConfigError(f"scale_rewards={args.scale_rewards!r} must be 'group', 'batch' or 'none'")
    return {"advantage.scale": args.scale_rewards, "advantage.combine": "nansum"}


def objective_values(args: GRPOConfig) -> dict[str, Any]:
    """The keys of the loss.

    Args:
        args: the arguments.

    Returns:
        The values, by dotted key.

    Raises:
        ConfigError: there is no such loss or level, or the arguments do not fit the loss.
    """
    if args.importance_sampling_level not in ("token", "sequence"):
        raise ConfigError(f"importance_sampling_level={args.importance_sampling_level!r} must be 'token' or 'sequence'")
    level = args.importance_sampling_level
    selections: list[dict[str, Any]] = []
    if args.top_entropy_quantile < 1:
        selections.append({"name": "top_entropy", "share": args.top_entropy_quantile})
    if args.off_policy_mask_threshold is not None:
        selections.append({"name": "near_policy", "limit": args.off_policy_mask_threshold})
    kl = {"divergence": "k3", "beta": args.beta, "ratio_level": level if args.use_bias_correction_kl else None}
    return {
        "objective.surrogate": _surrogate(args),
        "objective.aggregate": _aggregate(args),
        "objective.ratio_level": "trajectory" if args.loss_type == "vespo" else level,
        "objective.selections": selections,
        "objective.truncated": "zero" if args.mask_truncated_completions else "keep",
        "objective.kl": kl if args.beta else {},
    }


def _surrogate(args: GRPOConfig) -> dict[str, Any]:
    low, high = args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high
    if args.loss_type in CLIPPED:
        bounds = {"low": low, "high": high}
        return {"name": "clipped", **bounds} if args.delta is None else {
            "name": "two_sided_clipped", **bounds, "delta": args.delta
        }  # fmt: skip
    if args.loss_type == "cispo":
        if high <= 1:
            raise ConfigError(f"loss_type='cispo' takes epsilon_high as the largest ratio, above 1 (5.0); got {high}")
        return {"name": "cispo", "low": None, "high": high - 1}
    if args.loss_type == "sapo":
        return {
            "name": "sapo",
            "positive_temperature": args.sapo_temperature_pos,
            "negative_temperature": args.sapo_temperature_neg,
        }
    if args.loss_type == "vespo":
        return {
            "name": "vespo",
            "positive_power": args.vespo_k_pos,
            "positive_decay": args.vespo_lambda_pos,
            "negative_power": args.vespo_k_neg,
            "negative_decay": args.vespo_lambda_neg,
        }
    raise ConfigError(
        f"loss_type={args.loss_type!r} must be {', '.join(CLIPPED)}, cispo, sapo or vespo; `mmgrpo methods` lists "
        "others, for overrides={'objective.surrogate': NAME}"
    )


def _aggregate(args: GRPOConfig) -> Any:
    if args.loss_type in TOKEN_MEANS:
        return "token_mean"
    if args.loss_type == "dr_grpo":
        return {"name": "constant_length", "length": args.max_completion_length}
    return "sample_sum" if args.loss_type == "luspo" else "sequence_mean"


def _reference(args: GRPOConfig, steps: _Steps) -> dict[str, Any]:
    if not args.sync_ref_model:
        return {}
    if not args.beta:
        raise ConfigError("sync_ref_model=True needs beta above 0: there is no reference without it")
    if args.ref_model_sync_steps % steps.updates:
        raise ConfigError(
            f"ref_model_sync_steps={args.ref_model_sync_steps} must be a multiple of {steps.updates}, the updates per "
            "generation"
        )
    every, decay = args.ref_model_sync_steps // steps.updates, 1 - args.ref_model_mixup_alpha
    if not decay:
        return {"update.reference": {"reset_every": every}}
    return {"update.reference": {"ema": {"decay": decay, "every": every}}}


def _optimizer(args: GRPOConfig, steps: _Steps) -> dict[str, Any]:
    name = args.lr_scheduler_type
    numbers = dict(args.lr_scheduler_kwargs) if isinstance(args.lr_scheduler_kwargs, Mapping) else {}
    floor = 0.0
    if name == "cosine_with_min_lr":
        floor = numbers.pop("min_lr_rate", None) or numbers.pop("min_lr", 0.0) / args.learning_rate
        name = "cosine"
    if name not in LR_SCHEDULERS or numbers:
        raise ConfigError(
            f"lr_scheduler_type={name!r} with lr_scheduler_kwargs={args.lr_scheduler_kwargs} is not supported; use "
            f"{', '.join(LR_SCHEDULERS)}, or cosine_with_min_lr with min_lr or min_lr_rate"
        )
    warmup = args.warmup_steps if args.warmup_steps >= 1 else args.warmup_steps * steps.total * steps.updates
    schedule = {"name": LR_SCHEDULERS[name], "warmup_steps": 0 if name == "constant" else math.ceil(warmup)}
    if args.optim not in OPTIMIZERS:
        raise ConfigError(
            f"optim={args.optim!r} is not supported; use {', '.join(OPTIMIZERS)}, or the optimizers of mmgrpo by "
            "overrides={'update.optimizer': {'name': NAME, 'lr': NUMBER}}"
        )
    numbers = {"betas": [args.adam_beta1, args.adam_beta2], "eps": args.adam_epsilon} if args.optim in ADAMW else {}
    settings = {f"update.optimizer.{key}": value for key, value in {**OPTIMIZERS[args.optim], **numbers}.items()}
    return settings | {
        "update.optimizer.max_grad_norm": args.max_grad_norm or None,
        "update.optimizer.schedule": {**schedule, "end": floor} if floor else schedule,
    }


def differences(args: GRPOConfig, data: TrainingData) -> list[str]:
    """Where the numbers of a run differ from those of TRL under the same arguments.

    Args:
        args: the arguments.
        data: what they are applied to.

    Returns:
        A sentence for each difference.
    """
    steps, accumulates = _Steps.of(args, data), args.gradient_accumulation_steps > 1 or args.world_size > 1
    is_token_mean, selects = args.loss_type in TOKEN_MEANS, args.top_entropy_quantile < 1
    notes = {
        "loss_type='bnpo': the mean is over the tokens of the update, TRL's over those of each micro-batch": (
            args.loss_type == "bnpo" and accumulates
        ),
        "top_entropy_quantile: the quantile is that of the update, TRL's that of each micro-batch": (
            selects and args.gradient_accumulation_steps > 1
        ),
        "entropy_coef: the mean is that of the loss over all tokens, TRL's over the selected tokens of a micro-batch": (
            bool(args.entropy_coef) and (not is_token_mean or selects or accumulates)
        ),
        "several updates per generation: minibatches are complete groups, TRL's are rows in random order": (
            steps.minibatches > 1
        ),
        f"loss_type={args.loss_type!r}: the mean is over the tokens of each update, TRL divides by the mean number of "
        "tokens of the generation's updates": is_token_mean and steps.minibatches > 1,
        "top_p, top_k and min_p: log-probabilities are of the truncated distribution that is sampled, TRL's of the "
        "full one": bool(args.top_p < 1 or args.top_k or args.min_p),
        "warmup_steps: the ramp of the learning rate begins at 1 / warmup_steps, TRL's at 0": args.warmup_steps > 0,
        "weight_decay: it applies to all weights, TRL's not to biases and norms": args.weight_decay > 0,
        f"optim={args.optim!r}: moments of trained embeddings are in 8 bit too, TRL's in float32": "8bit" in args.optim,
        "fp16: an update that overflows is accumulated again at half the scale, TRL skips it": args.fp16,
        "max_tool_calling_iterations: the calls of the last turn are executed too": (
            data.has_tools and args.max_tool_calling_iterations is not None
        ),
        **vllm_differences(args),
        "log_completions: samples/ of the run folder has the groups of the first and the last step and of steps with "
        "an evaluation": args.log_completions,
    }
    return [note for note, applies in notes.items() if applies]
