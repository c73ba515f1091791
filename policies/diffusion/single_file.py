"""Pipelines from one-file checkpoints: the weights of all components under the keys of the original code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
from diffusers import DiffusionPipeline

from mmgrpo.errors import ConfigError
from mmgrpo.system.hub import explain_load_error

from ..adapters import FACTORS, opened_tensors
from ..model_source import DTYPES
from .settings import DenoisingSettings

SUFFIX = ".safetensors"
ADAPTER_MARKS = (*FACTORS, ".lora_down.", ".lora_up.", ".lora.down.", ".lora.up.")


def single_file_of(source: str) -> Path | None:
    """The path of a one-file checkpoint; None if the model is no file."""
    path = Path(source).expanduser()
    return path if path.is_file() else None


def configuration_of(path: Path, settings: DenoisingSettings) -> str:
    """The folder or hub id of the pipeline that matches a one-file checkpoint.

    The file holds weights only: classes and configurations of its components, tokenizers and the scheduler come from
    ``policy.single_file_config``, or from the repository that diffusers infers from the file's keys.

    Args:
        path: of the file.
        settings: of the policy.

    Returns:
        The folder or hub id.

    Raises:
        ConfigError: it is no safetensors file of a pipeline's weights, or its pipeline is unknown.
        CheckpointError: the file is truncated or a git-lfs pointer.
    """
    if path.suffix != SUFFIX:
        raise ConfigError(
            f"policy.model {str(path)!r} is not supported: one-file checkpoints are {SUFFIX} files (others may run "
            "code or are quantized); convert it, or set a folder written by save_pretrained"
        )
    with opened_tensors(path) as opened:
        keys = list(opened.keys())
    if any(mark in key for key in keys for mark in ADAPTER_MARKS):
        raise ConfigError(
            f"policy.model {str(path)!r} has adapters and no model: set policy.adapter to it, and policy.model to the "
            "model that they were trained on"
        )
    return settings.single_file_config or _inferred(path)


def load_single_file(path: Path, config: str, settings: DenoisingSettings, absent: Mapping[str, None]) -> Any:
    """The pipeline of a one-file checkpoint, by ``from_single_file`` of its configuration's class.

    Args:
        path: the file.
        config: from ``configuration_of``.
        settings: of the policy.
        absent: omitted components, each None.

    Returns:
        The pipeline.

    Raises:
        ConfigError: its configuration cannot be loaded, or diffusers does not read such a file for the class.
    """
    pipeline_class = _pipeline_class(path, config, is_configured=settings.single_file_config is not None)
    try:
        pipeline = pipeline_class.from_single_file(str(path), config=config, dtype=DTYPES[settings.dtype], **absent)
    except Exception as error:  # diffusers' conversions raise many kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"policy.model {str(path)!r} cannot be loaded as a {pipeline_class.__name__} configured as {config}: "
            f"{reason:.400}; "
            "if that is not its pipeline, set policy.single_file_config to a folder or hub id of the right one; if "
            "components are missing from the file, build the pipeline in a function, python:module:function"
        ) from error
    for name, dtype in settings.components.items():
        if dtype is not None:
            getattr(pipeline, name).to(DTYPES[dtype])
    return pipeline


def _inferred(path: Path) -> str:
    """The repository of the configuration that diffusers infers. Raises ConfigError if the file's keys are unknown."""
    from diffusers.loaders.single_file_utils import (
        CHECKPOINT_KEY_NAMES,
        fetch_diffusers_config,
        infer_diffusers_model_type,
        load_single_file_checkpoint,
    )

    checkpoint = load_single_file_checkpoint(str(path))
    is_first = infer_diffusers_model_type(checkpoint) == "v1"  # also the result for unknown keys
    if is_first and CHECKPOINT_KEY_NAMES["inpainting"] not in checkpoint:
        names = ", ".join(list(checkpoint)[:3]) or "none"
        raise ConfigError(
            f"policy.model {str(path)!r} has weights with keys of no one-file checkpoint that diffusers supports "
            f"({names}): set policy.single_file_config to a folder or hub id of its pipeline, or policy.model to a "
            "folder written by save_pretrained"
        )
    return fetch_diffusers_config(checkpoint)["pretrained_model_name_or_path"]


def _pipeline_class(path: Path, config: str, *, is_configured: bool) -> Any:
    """The class in a configuration. Raises ConfigError if it cannot be loaded or does not read one-file checkpoints."""
    try:
        index: Any = DiffusionPipeline.load_config(config)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.model {str(path)!r} is a one-file checkpoint, which has weights only; its pipeline's "
            f"configuration, {config}{'' if is_configured else ' (inferred from its keys)'}, cannot be loaded: "
            f"{explain_load_error(config, error)}. Or set policy.single_file_config to a folder with its "
            "model_index.json"
        ) from error
    name = index.get("_class_name", "")
    pipeline_class = getattr(diffusers, name, None)
    if not callable(getattr(pipeline_class, "from_single_file", None)):
        raise ConfigError(
            f"policy.model {str(path)!r}: {name or 'the pipeline'} of {config} cannot read one-file checkpoints; set "
            "policy.model to a folder written by save_pretrained"
        )
    return pipeline_class
