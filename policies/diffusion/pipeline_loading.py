"""Pipelines from paths, hub ids and Python functions."""

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
from mmgrpo.system.hub import explain_load_error

from ..model_source import DTYPES, call_builder, require_model
from ..quantization import loading_errors, pipeline_quantization, require_no_quantization
from .caches import cache_names
from .settings import DenoisingSettings
from .signature import pipeline_class, pipeline_index, require_arguments
from .single_file import configuration_of, load_single_file, single_file_of


def load_pipeline(settings: DenoisingSettings) -> Any:
    """The pipeline of ``settings.model``.

    ``model`` is a folder written by ``save_pretrained``, a hub id, a one-file checkpoint, or ``python:module:function``
    for a function without arguments that returns a live pipeline.

    Raises ConfigError if the model is missing or cannot be loaded, and, before weights are loaded, for settings with an
    argument of its call or a component that it does not have.
    """
    source = require_model(settings.model)
    if source.startswith("python:"):
        if settings.components:
            raise ConfigError(
                "policy.components needs a stored pipeline; with a python: model, leave components out in the function"
            )
        require_no_quantization(settings.quantization_config)
        pipeline = call_builder(source)
        return pipeline if settings.dtype == "float32" else pipeline.to(DTYPES[settings.dtype])
    file = single_file_of(source)
    if file is None and settings.single_file_config is not None:
        raise ConfigError(
            f"policy.single_file_config needs a one-file checkpoint, and policy.model {source!r} is no file; remove it"
        )
    configured = source if file is None else configuration_of(file, settings)
    kind = pipeline_class(configured, settings.revision)
    if kind is not None:
        require_arguments(kind, settings)
    index = pipeline_index(configured, settings.revision)
    dtype, absent = _components(settings, index)
    if kind is not None:
        _require_stored(kind, index, settings)
    if file is not None:
        require_no_quantization(settings.quantization_config)
        return load_single_file(file, configured, settings, absent)
    quantization: dict[str, Any] = {}
    if settings.quantization_config is not None:
        quantization["quantization_config"] = pipeline_quantization(
            settings.quantization_config, index, settings.dtype, settings.components
        )
    try:
        with _suppress_log("diffusers.pipelines.pipeline_utils", "Couldn't connect to the Hub"):
            return DiffusionPipeline.from_pretrained(
                source, dtype=dtype, revision=settings.revision, variant=settings.variant, **absent, **quantization
            )
    except loading_errors(settings.quantization_config) as error:
        reason = explain_load_error(source, error, revision=settings.revision)
        raise ConfigError(f"policy.model {source!r} cannot be loaded as a diffusers pipeline: {reason}") from error


def _require_stored(kind: type[DiffusionPipeline], index: Mapping[str, Any], settings: DenoisingSettings) -> None:
    """Raises ConfigError for components that the class requires and that the pipeline was saved without."""
    parameters = inspect.signature(kind).parameters
    required = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    required -= {*kind._optional_components, *settings.components}
    if missing := [name for name in index if name in required and not any(index[name] or ())]:
        nulls = ", ".join(f"{name}: null" for name in missing)
        raise ConfigError(
            f"policy.model {settings.model!r} was saved without {', '.join(missing)}, which {kind.__name__} takes: "
            f"policy: {{components: {{{nulls}}}}} loads it without them"
        )


def _components(settings: DenoisingSettings, index: Mapping[str, Any]) -> tuple[Any, dict[str, None]]:
    """The dtypes of components, as ``from_pretrained`` takes them, and the omitted components."""
    names = [name for name in index if not name.startswith("_")]
    if names and (unknown := sorted(settings.components.keys() - set(names))):
        raise ConfigError(f"policy.components: the pipeline has no {', '.join(unknown)}; it has {', '.join(names)}")
    dtypes = {name: DTYPES[dtype] for name, dtype in settings.components.items() if dtype is not None}
    default = DTYPES[settings.dtype]
    absent: dict[str, None] = {name: None for name, dtype in settings.components.items() if dtype is None}
    return {"default": default, **dtypes} if dtypes else default, absent


@contextmanager
def _suppress_log(logger: str, start: str) -> Iterator[None]:
    """Drops a logger's messages that begin with ``start`` within the context: our error reports the problem once."""

    def keeps(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(start)

    logging.getLogger(logger).addFilter(keeps)
    try:
        yield
    finally:
        logging.getLogger(logger).removeFilter(keeps)


def configured_scheduler(scheduler: Any, changes: Mapping[str, Any]) -> Any:
    """The scheduler with changed configuration. Raises ConfigError for an unknown key."""
    if not changes:
        return scheduler
    if unknown := sorted(set(changes) - set(scheduler.config)):
        names = ", ".join(sorted(key for key in scheduler.config if not key.startswith("_")))
        raise ConfigError(f"policy.scheduler: {type(scheduler).__name__} has no {', '.join(unknown)}; it has {names}")
    return type(scheduler).from_config(scheduler.config, **changes)


def compile_denoiser(module: nn.Module) -> None:
    """Compiles a denoiser in place: the blocks that diffusers declares as repeated, or all of it if there are none.

    Repeated blocks share compiled code, so compilation takes a fraction of the time.
    """
    declared: Any = getattr(module, "_repeated_blocks", None) or ()
    for part in [part for part in module.modules() if type(part).__name__ in declared] or [module]:
        part.compile()


@dataclass(frozen=True, slots=True)
class Replacement:
    """A scheduler class of first-order steps on the same noise levels, and the configuration changes that it needs."""

    kind: Any
    changes: Mapping[str, Any] = field(default_factory=dict)


STEP_ARGUMENTS = ("model_output", "timestep", "sample")
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
    """The scheduler itself, or a first-order one with the same noise levels if its steps cannot be decisions.

    Raises PolicyError for a scheduler without ``step(model_output, timestep, sample)``.
    """
    name, step = type(scheduler).__name__, getattr(scheduler, "step", None)
    if step is None or not set(STEP_ARGUMENTS) <= set(inspect.signature(step).parameters):
        raise PolicyError(
            f"{name} has no step({', '.join(STEP_ARGUMENTS)}), which decisions need: replace the pipeline's scheduler "
            "before creating the policy"
        )
    replacement = next((entry for prefix, entry in FIRST_ORDER.items() if name.startswith(prefix)), None)
    if replacement is None:
        return scheduler
    try:
        return replacement.kind.from_config(scheduler.config, **replacement.changes)
    except NotImplementedError:  # a beta schedule that the other class does not support by name (Shap-E)
        return replacement.kind.from_config(scheduler.config, trained_betas=scheduler.betas, **replacement.changes)


def replaced_settings(scheduler: Any, decisions: Any, denoisers: Sequence[nn.Module]) -> list[str]:
    """Settings of the pipeline that decisions replace or disable, in words.

    Args:
        scheduler: the pipeline's scheduler.
        decisions: the scheduler of its decisions.
        denoisers: modules that may have caches enabled.

    Returns:
        One sentence each.
    """
    choices, stock = [], type(scheduler).__name__
    if decisions is not scheduler:
        choices.append(
            f"steps of {stock} cannot be decisions: they are sampled and scored with {type(decisions).__name__} on the "
            f"same noise levels; deterministic samples use {stock}"
        )
    if names := cache_names(denoisers):
        choices.append(
            f"{', '.join(names)} is off while decisions are sampled or scored; deterministic samples use the cache"
        )
    return choices
