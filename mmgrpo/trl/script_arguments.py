"""Arguments of TRL's scripts and trainers, of peft's ``LoraConfig`` and of earlier versions of ``GRPOConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmgrpo.config.peers.texts import DROPOUT, FOUR_BIT, FUNCTION, LENGTH, PADDING_FREE, RSLORA
from mmgrpo.errors import ConfigError
from mmgrpo.system.site_pages import page_url

EARLIER: Mapping[str, str] = {
    "warmup_ratio": "warmup_steps",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
}
"""Argument of an earlier version -> that of today with the same values: steps below 1 are a share of the run."""

LORA_WEIGHTS = "leave it out: adapters are on linear layers, policy.lora.targets names them"
SUPERVISED = "leave it out: it is for supervised training, for which mmgrpo has update.warmup and objective.auxiliary"
BATCHES = "leave it out: rows are batched by their tokens, policy.update_tokens per forward"

KEYS: Mapping[str, str] = {
    "model_name_or_path": "policy.model",
    "model_revision": "policy.revision",
    "dtype": "policy.dtype",
    "torch_dtype": "policy.dtype",
    "attn_implementation": "policy.attention",
    "use_peft": "policy.lora: {rank: 16, alpha: 32}",
    "peft_config": "policy.lora",
    "lora_config": "policy.lora",
    "peft_config.r": "policy.lora.rank",
    "peft_config.lora_alpha": "policy.lora.alpha",
    "peft_config.target_modules": "policy.lora.targets",
    "peft_config.init_lora_weights": "policy.lora.init",
    "peft_config.use_dora": "policy.lora.dora",
    "peft_config.use_rslora": RSLORA,
    "lora_r": "policy.lora.rank",
    "lora_alpha": "policy.lora.alpha",
    "lora_target_modules": "policy.lora.targets",
    "use_rslora": RSLORA,
    "use_dora": "policy.lora.dora",
    "load_in_4bit": FOUR_BIT,
    "load_in_8bit": "policy.quantization_config: {load_in_8bit: true} with policy.lora",
    "bnb_4bit_quant_type": "policy.quantization_config: {load_in_4bit: true, bnb_4bit_quant_type: nf4}",
    "bnb_4bit_compute_dtype": "policy.quantization_config: {load_in_4bit: true, bnb_4bit_compute_dtype: bfloat16}",
    "bnb_4bit_quant_storage": "policy.quantization_config: {load_in_4bit: true, bnb_4bit_quant_storage: uint8}",
    "bnb_4bit_use_double_quant": "policy.quantization_config: {load_in_4bit: true, bnb_4bit_use_double_quant: true}",
    "use_bnb_nested_quant": "policy.quantization_config: {load_in_4bit: true, bnb_4bit_use_double_quant: true}",
    "quantization_config": "policy.quantization_config with policy.lora",
    "packing": PADDING_FREE,
    "padding_free": PADDING_FREE,
    "dataset_name": "prompts.source",
    "dataset_train_split": "prompts.split",
    "dataset_test_split": "evaluation.prompts.split",
    "dataset_text_field": "prompts.columns: {prompt: COLUMN}",
    "model": "policy.model",
    "train_dataset": "prompts.source",
    "eval_dataset": "evaluation.prompts.source",
    "reward_funcs": FUNCTION,
    "reward_model_name_or_path": "rewards: [{name: reward_model, model: NAME}]",
    "tools": "rollout.environment: {name: tools, functions: [python:MODULE:FUNCTION]}",
    "environment_factory": "rollout.environment: {name: tool_object, factory: python:MODULE:CLASS}",
    "max_length": "policy.max_new_tokens",
    "max_new_tokens": "policy.max_new_tokens",
    "warmup_ratio": "update.optimizer.schedule.warmup_steps",
    "evaluation_strategy": "evaluation.every",
    "logging_dir": "runtime.trackers: [{name: tensorboard}]",
    "no_cuda": "runtime.device: cpu",
}
"""Argument -> keys of a run."""

REWARDS: Mapping[str, str] = {
    "accuracy_reward": "{name: math_verify, column: solution}",
    "reasoning_accuracy_reward": "{name: math_verify, column: solution}",
    "think_format_reward": "{name: format, pattern: PATTERN}",
    "get_soft_overlong_punishment": "{name: overlong, max_length: N, margin: N}",
    "get_repetition_penalty_reward": "{name: repetition}",
    "get_cosine_scaled_reward": "{name: cosine_length, max_length: N}",
}
"""Function of ``trl.rewards`` -> an entry of ``rewards``; ``python:trl.rewards:FUNCTION`` calls the function itself."""

REPLACEMENTS: Mapping[str, str] = {
    "max_prompt_length": LENGTH,
    "max_seq_length": "policy.max_new_tokens for completions; prompts are not cut",
    "group_by_length": BATCHES,
    "lora_dropout": DROPOUT,
    "lora_modules_to_save": LORA_WEIGHTS,
    "lora_target_parameters": LORA_WEIGHTS,
    "lora_task_type": LORA_WEIGHTS,
    "task_type": LORA_WEIGHTS,
    "modules_to_save": LORA_WEIGHTS,
    "bias": LORA_WEIGHTS,
    "assistant_only_loss": SUPERVISED,
    "completion_only_loss": SUPERVISED,
    "dataset_config": "`python:MODULE:FUNCTION` as prompts.source, a function that returns load_dataset(NAME, CONFIG)",
    "dataset_streaming": "prompts.limit for the first rows of a dataset",
    "ignore_bias_buffers": "leave it out: gradients are summed by mmgrpo, not by DistributedDataParallel",
    "overwrite_output_dir": "leave it out: each run has a folder of its name, and another one with that name a number",
    "save_safetensors": "leave it out: weights are stored as safetensors",
    "ref_model": "leave it out: the reference is the model before training, or follows it by update.reference",
    "vllm_device": "leave it out: a vLLM server has its own devices, rollout.engine names its address",
    "reward_processing_classes": "leave it out: a reward model is loaded with its own tokenizer",
    "callbacks": "leave it out: the run folder has all metrics, and runtime.trackers or report_to names trackers",
    "rollout_func": (
        "an environment_factory or rollout.environment; rollout.strategy for other requests "
        f"({page_url('how-to/extending')})"
    ),
}
"""Argument without a key -> its replacement."""


def current_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names of today.

    Args:
        arguments: the arguments, also by names of earlier versions.

    Returns:
        The arguments.

    Raises:
        ConfigError: an argument has both names, or a ratio is not below 1.
    """
    for name, current in EARLIER.items():
        if name in arguments and current in arguments:
            raise ConfigError(f"{name} is the earlier name of {current}: set {current} alone")
    ratio = arguments.get("warmup_ratio")
    if isinstance(ratio, int | float) and not 0 <= ratio < 1:
        raise ConfigError(f"warmup_ratio={ratio} must be from 0 to below 1; warmup_steps is a number of updates")
    return {EARLIER.get(name, name): value for name, value in arguments.items()}
