"""Pipelines from paths, hub ids and Python builders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import DiffusionPipeline
from torch import nn

from mmgrpo.errors import ConfigError
from mmgrpo.policies.denoising.settings import DenoisingSettings
from mmgrpo.policies.loading import DTYPES, built, named


def load_pipeline(settings: DenoisingSettings) -> Any:
    """The pipeline a run's settings name.

    ``model`` is a folder written by ``save_pretrained``, a hub id, or ``python:module:function`` for a function of no
    arguments that returns a live pipeline.

    Raises ConfigError if nothing is named or what is named cannot be loaded.
    """
    source = named(settings.model)
    if source.startswith("python:"):
        pipeline = built(source)
        return pipeline if settings.dtype == "float32" else pipeline.to(DTYPES[settings.dtype])
    try:
        return DiffusionPipeline.from_pretrained(
            source, torch_dtype=DTYPES[settings.dtype], revision=settings.revision, variant=settings.variant
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.model {source!r} cannot be loaded as a diffusers pipeline: {error}") from error


def configured_scheduler(scheduler: Any, changes: Mapping[str, Any]) -> Any:
    """The scheduler with some of its configuration changed. Raises ConfigError if it has no such key."""
    if not changes:
        return scheduler
    if unknown := sorted(set(changes) - set(scheduler.config)):
        known = ", ".join(sorted(key for key in scheduler.config if not key.startswith("_")))
        raise ConfigError(f"policy.scheduler: {type(scheduler).__name__} has no {', '.join(unknown)}; it has {known}")
    return type(scheduler).from_config(scheduler.config, **changes)


def compile_denoiser(module: nn.Module) -> None:
    """Compiles a denoiser in place: the blocks that diffusers declares to repeat, or all of it where it declares none.

    Blocks of one class share their code, so that the former takes a fraction of the time to compile.
    """
    declared = getattr(module, "_repeated_blocks", None) or ()
    for part in [part for part in module.modules() if type(part).__name__ in declared] or [module]:
        part.compile()
