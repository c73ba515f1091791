"""The arguments ``model``, ``processing_class`` and ``peft_config`` of TRL's trainers as a policy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig, PeftConfig
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS
from transformers import AutoConfig, AutoProcessor, PreTrainedModel

from mmgrpo.config.registry import policy_class
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy

LOADING_SETTINGS = ("model", "revision", "dtype", "attention", "quantization_config")
"""Settings that load a model."""

UNUSED = (
    *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "runtime_config"),
)
"""Settings of peft without an effect on training."""

INITIAL = {True: "kaiming", "gaussian": "gaussian"}


def policy_of_model(
    model: str | PreTrainedModel,
    processing_class: Any,
    settings: Mapping[str, Any],
    *,
    device: str | torch.device,
) -> Policy:
    """A policy.

    Args:
        model: path, hub id or a loaded model.
        processing_class: tokenizer or processor; None: that of a loaded model.
        settings: of the section ``policy``.
        device: the device.

    Returns:
        The policy, on the device.
    """
    adapter = policy_class("language")
    if isinstance(model, str):
        policy: Any = adapter.from_config(settings, device=device)
        return adapter(policy.model, processing_class, settings, weights=policy.weights)
    if processing_class is None:
        processing_class = AutoProcessor.from_pretrained(model.config._name_or_path, trust_remote_code=False)
    live_settings = {name: value for name, value in settings.items() if name not in LOADING_SETTINGS}
    return adapter(model.to(device), processing_class, live_settings)  # pyrefly: ignore[bad-argument-type]


def lora_settings(peft_config: PeftConfig, model_type: str) -> dict[str, Any]:
    """The section ``policy.lora`` with the adapters of peft's configuration.

    Args:
        peft_config: a ``LoraConfig``.
        model_type: transformers' name of the architecture, for peft's default targets.

    Returns:
        The values.

    Raises:
        ConfigError: the configuration is of other adapters, or has a setting that the policy does not have.
    """
    if not isinstance(peft_config, LoraConfig):
        raise ConfigError(f"peft_config must be a LoraConfig, got {type(peft_config).__name__}")
    values, defaults = dataclasses.asdict(peft_config), dataclasses.asdict(LoraConfig())
    rank, alpha = peft_config.r, float(peft_config.lora_alpha)
    targets = peft_config.target_modules or TARGETS.get(model_type)
    if targets is None:
        raise ConfigError(f"peft_config: peft has no default target_modules for {model_type}; set them")
    mapped = ("r", "lora_alpha", "target_modules", "init_lora_weights", "use_rslora", "use_dora")
    others = [name for name in values if name not in (*mapped, *UNUSED) and values[name] != defaults[name]]
    if others or peft_config.init_lora_weights not in INITIAL:
        names = [*others, *([] if peft_config.init_lora_weights in INITIAL else ["init_lora_weights"])]
        hint = "; dropout is off, since rollout and update use the same policy" if "lora_dropout" in names else ""
        raise ConfigError(f"peft_config: {', '.join(names)} must have the default of LoraConfig{hint}")
    return {
        "rank": rank,
        "alpha": alpha * math.sqrt(rank) if peft_config.use_rslora else alpha,
        "targets": targets if isinstance(targets, str) else sorted(targets),
        "init": INITIAL[peft_config.init_lora_weights],
        "dora": peft_config.use_dora,
    }


def model_config(model: str | PreTrainedModel) -> Any:
    """The configuration of a model's language model.

    Args:
        model: path, hub id or a loaded model.

    Returns:
        The configuration.
    """
    config = AutoConfig.from_pretrained(model, trust_remote_code=False) if isinstance(model, str) else model.config
    return config.get_text_config(decoder=True)
