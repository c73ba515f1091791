"""Pipelines from paths, hub ids and Python builders."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import DiffusionPipeline

from mmgrpo.errors import ConfigError
from mmgrpo.policies.denoising.settings import DenoisingSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_pipeline(settings: DenoisingSettings) -> Any:
    """The pipeline a run's settings name.

    ``model`` is a folder written by ``save_pretrained``, a hub id, or ``python:module:function`` for a function of no
    arguments that returns a live pipeline.

    Raises ConfigError if nothing is named or what is named cannot be loaded.
    """
    if not settings.model:
        raise ConfigError("policy.model is not set: give a path, a hub id or python:module:function")
    if settings.model.startswith("python:"):
        pipeline = _built(settings.model)
        return pipeline if settings.dtype == "float32" else pipeline.to(DTYPES[settings.dtype])
    try:
        return DiffusionPipeline.from_pretrained(
            settings.model, torch_dtype=DTYPES[settings.dtype], revision=settings.revision, variant=settings.variant
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.model {settings.model!r} cannot be loaded as a diffusers pipeline: {error}"
        ) from error


def configured_scheduler(scheduler: Any, changes: Mapping[str, Any]) -> Any:
    """The scheduler with some of its configuration changed. Raises ConfigError if it has no such key."""
    if not changes:
        return scheduler
    if unknown := sorted(set(changes) - set(scheduler.config)):
        known = ", ".join(sorted(key for key in scheduler.config if not key.startswith("_")))
        raise ConfigError(f"policy.scheduler: {type(scheduler).__name__} has no {', '.join(unknown)}; it has {known}")
    return type(scheduler).from_config(scheduler.config, **changes)


def _built(source: str) -> Any:
    try:
        _, module, attribute = source.split(":")
        builder = getattr(importlib.import_module(module), attribute)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(f"policy.model {source!r} must be python:module:function; {error}") from error
    return builder()
