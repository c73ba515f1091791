"""Pipelines from one-file checkpoints: the weights of all components under the keys of the original code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
from diffusers import DiffusionPipeline

from mmgrpo.errors import ConfigError
from mmgrpo.system.hub import why_not

from ..adapters import FACTORS, opened_tensors
from ..model_source import DTYPES
from .settings import DenoisingSettings

SUFFIX = ".safetensors"
ADAPTER_MARKS = (*FACTORS, ".lora_down.", ".lora_up.", ".lora.down.", ".lora.up.")


def single_file_of(source: str) -> Path | None:
    """The one-file checkpoint that a model's name is the path of, if it is one."""
    path = Path(source).expanduser()
    return path if path.is_file() else None


def configuration_of(path: Path, settings: DenoisingSettings) -> str:
    """The folder or hub id of the pipeline that a one-file checkpoint holds the weights of.

    The file holds weights alone: the classes and configurations of its components, tokenizers and the scheduler are
    those of ``policy.single_file_config``, or of the repository that diffusers infers from the keys of the file.

    Args:
        path: of the file.
        settings: of the policy.

    Returns:
        The folder or hub id.

    Raises:
        ConfigError: it is no safetensors file of a pipeline's weights, or nothing tells which pipeline it is.
        CheckpointError: the file is cut short or a git-lfs pointer.
    """
    if path.suffix != SUFFIX:
        raise ConfigError(
            f"policy.model {str(path)!r} is a file that is not read: one-file checkpoints are {SUFFIX} files (others "
            "may run code or are quantized); convert it, or give a folder that save_pretrained wrote"
        )
    with opened_tensors(path) as opened:
        keys = list(opened.keys())
    if any(mark in key for key in keys for mark in ADAPTER_MARKS):
        raise ConfigError(
            f"policy.model {str(path)!r} holds adapters and no model: give it as policy.adapter, and as policy.model "
            "the model that they were trained on"
        )
    return settings.single_file_config or _inferred(path)


def load_single_file(path: Path, config: str, settings: DenoisingSettings, absent: Mapping[str, None]) -> Any:
    """The pipeline of a one-file checkpoint, by ``from_single_file`` of the class that its configuration names.

    Args:
        path: the file.
        config: as ``configuration_of`` gives it.
        settings: of the policy.
        absent: components that are left out, each None.

    Returns:
        The pipeline.

    Raises:
        ConfigError: its configuration cannot be loaded, or diffusers reads no such file for the class.
    """
    kind = _pipeline_class(path, config, stated=settings.single_file_config is not None)
    try:
        pipeline = kind.from_single_file(str(path), config=config, dtype=DTYPES[settings.dtype], **absent)
    except Exception as error:  # of diffusers' conversions, which raise what they come upon
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"policy.model {str(path)!r} cannot be loaded as a {kind.__name__} configured as {config}: {reason:.400}; "
            "if that is not its pipeline, set policy.single_file_config to a folder or hub id of the right one; where "
            "components are missing from the file, build the pipeline in a function, python:module:function"
        ) from error
    for name, dtype in settings.components.items():
        if dtype is not None:
            getattr(pipeline, name).to(DTYPES[dtype])
    return pipeline


def _inferred(path: Path) -> str:
    """The repository whose configuration diffusers takes for the file. Raises ConfigError where its keys name none."""
    from diffusers.loaders.single_file_utils import (
        CHECKPOINT_KEY_NAMES,
        fetch_diffusers_config,
        infer_diffusers_model_type,
        load_single_file_checkpoint,
    )

    checkpoint = load_single_file_checkpoint(str(path))
    is_first = infer_diffusers_model_type(checkpoint) == "v1"  # also the answer for keys that diffusers does not know
    if is_first and CHECKPOINT_KEY_NAMES["inpainting"] not in checkpoint:
        names = ", ".join(list(checkpoint)[:3]) or "none"
        raise ConfigError(
            f"policy.model {str(path)!r} holds weights under keys that diffusers knows of no one-file checkpoint "
            f"({names}): set policy.single_file_config to a folder or hub id of its pipeline, or give a folder that "
            "save_pretrained wrote"
        )
    return fetch_diffusers_config(checkpoint)["pretrained_model_name_or_path"]


def _pipeline_class(path: Path, config: str, *, stated: bool) -> Any:
    """The class that a configuration names, which has to read one-file checkpoints."""
    try:
        index: Any = DiffusionPipeline.load_config(config)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.model {str(path)!r} is a one-file checkpoint, which holds weights alone; the configuration of its "
            f"pipeline is that of {config}{'' if stated else ' (inferred from its keys)'}, and cannot be loaded: "
            f"{why_not(config, error)}. Or set policy.single_file_config to a folder with its model_index.json"
        ) from error
    name = index.get("_class_name", "")
    kind = getattr(diffusers, name, None)
    if not callable(getattr(kind, "from_single_file", None)):
        raise ConfigError(
            f"policy.model {str(path)!r}: {name or 'the pipeline'} of {config} reads no one-file checkpoints; give a "
            "folder that save_pretrained wrote"
        )
    return kind
