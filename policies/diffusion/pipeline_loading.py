"""Pipelines from paths, hub ids and Python builders."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from diffusers import (
    DDIMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
)
from torch import nn

from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.system.hub import why_not

from ..model_source import DTYPES, call_builder, require_model
from .caches import cache_names
from .settings import DenoisingSettings
from .signature import pipeline_class, pipeline_index, require_arguments
from .single_file import configuration_of, load_single_file, single_file_of


def load_pipeline(settings: DenoisingSettings) -> Any:
    """The pipeline a run's settings name.

    ``model`` is a folder written by ``save_pretrained``, a hub id, a one-file checkpoint, or ``python:module:function``
    for a function of no arguments that returns a live pipeline.

    Raises ConfigError if nothing is named or what is named cannot be loaded, and, before weights are, for settings that
    name an argument of its call or a component that it does not have.
    """
    source = require_model(settings.model)
    if source.startswith("python:"):
        if settings.components:
            raise ConfigError("policy.components is for stored pipelines; leave them out where the function builds it")
        pipeline = call_builder(source)
        return pipeline if settings.dtype == "float32" else pipeline.to(DTYPES[settings.dtype])
    file = single_file_of(source)
    if file is None and settings.single_file_config is not None:
        raise ConfigError(
            f"policy.single_file_config is for a one-file checkpoint, and policy.model {source!r} is no file: leave it "
            "out"
        )
    configured = source if file is None else configuration_of(file, settings)
    kind = pipeline_class(configured, settings.revision)
    if kind is not None:
        require_arguments(kind, settings)
    dtype, absent = _components(settings, pipeline_index(configured, settings.revision))
    if file is not None:
        return load_single_file(file, configured, settings, absent)
    try:
        with _unsaid("diffusers.pipelines.pipeline_utils", "Couldn't connect to the Hub"):
            return DiffusionPipeline.from_pretrained(
                source, dtype=dtype, revision=settings.revision, variant=settings.variant, **absent
            )
    except (OSError, ValueError) as error:
        why = why_not(source, error, revision=settings.revision)
        raise ConfigError(f"policy.model {source!r} cannot be loaded as a diffusers pipeline: {why}") from error


def _components(settings: DenoisingSettings, index: Mapping[str, Any]) -> tuple[Any, dict[str, None]]:
    """The dtypes of components, as ``from_pretrained`` takes them, and those that are left out."""
    names = [name for name in index if not name.startswith("_")]
    if names and (unknown := sorted(settings.components.keys() - set(names))):
        raise ConfigError(f"policy.components: the pipeline has no {', '.join(unknown)}; it has {', '.join(names)}")
    own = {name: DTYPES[dtype] for name, dtype in settings.components.items() if dtype is not None}
    default = DTYPES[settings.dtype]
    absent: dict[str, None] = {name: None for name, dtype in settings.components.items() if dtype is None}
    return {"default": default, **own} if own else default, absent


@contextmanager
def _unsaid(logger: str, start: str) -> Iterator[None]:
    """Within it a logger leaves out the messages that begin so: what they say is said once, by an error of ours."""

    def other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(start)

    logging.getLogger(logger).addFilter(other)
    try:
        yield
    finally:
        logging.getLogger(logger).removeFilter(other)


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


@dataclass(frozen=True, slots=True)
class Replacement:
    """A class of first-order steps on the same noise levels as another's, and what its configuration has to change."""

    kind: Any
    changes: Mapping[str, Any] = field(default_factory=dict)


STEPPED = ("model_output", "timestep", "sample")
FIRST_ORDER: Mapping[str, Replacement] = {
    "PNDM": Replacement(DDIMScheduler, {"clip_sample": False}),
    "SASolver": Replacement(DPMSolverMultistepScheduler),
    "LMS": Replacement(EulerDiscreteScheduler),
    "Heun": Replacement(EulerDiscreteScheduler),
    "KDPM2": Replacement(EulerDiscreteScheduler),
    "DPMSolverSDE": Replacement(EulerDiscreteScheduler),
    "FlowMatchHeun": Replacement(FlowMatchEulerDiscreteScheduler),
}


def decision_scheduler(scheduler: Any) -> Any:
    """The scheduler itself, or the first-order one of the same noise levels where its steps are no decisions.

    Raises PolicyError for a scheduler that steps otherwise than by ``step(model_output, timestep, sample)``.
    """
    name, step = type(scheduler).__name__, getattr(scheduler, "step", None)
    if step is None or not set(STEPPED) <= set(inspect.signature(step).parameters):
        raise PolicyError(
            f"{name} has no step({', '.join(STEPPED)}), by which decisions are drawn: give the pipeline a scheduler "
            "that has one before wrapping it"
        )
    replacement = next((found for prefix, found in FIRST_ORDER.items() if name.startswith(prefix)), None)
    if replacement is None:
        return scheduler
    try:
        return replacement.kind.from_config(scheduler.config, **replacement.changes)
    except NotImplementedError:  # a beta schedule that the other class has no name for (Shap-E)
        return replacement.kind.from_config(scheduler.config, trained_betas=scheduler.betas, **replacement.changes)


def choices_of(scheduler: Any, decisions: Any, denoisers: Sequence[nn.Module]) -> list[str]:
    """What the owner set and decisions are drawn without, in words.

    Args:
        scheduler: the pipeline's own.
        decisions: what its decisions are drawn with.
        denoisers: on which caches may be switched on.

    Returns:
        A sentence each.
    """
    chosen, own = [], type(scheduler).__name__
    if decisions is not scheduler:
        chosen.append(
            f"the steps of {own} are no decisions, so they are drawn and scored with {type(decisions).__name__} on the "
            f"same noise levels; samples without noise keep {own}"
        )
    if names := cache_names(denoisers):
        chosen.append(
            f"{', '.join(names)} off where decisions are drawn or scored; samples without noise keep the cache"
        )
    return chosen
