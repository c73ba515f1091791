"""The components of a pipeline: finding the denoisers, and replacing components during a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from diffusers import DiffusionPipeline, ModelMixin
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry, dispatch_attention_fn
from torch import nn

from mmgrpo.errors import ConfigError, PolicyError, ReplayError

from .settings import DenoisingSettings

NAMED_DENOISERS = ("transformer", "unet", "unconditional_transformer", "dit")


def prepared_denoisers(pipeline: Any, settings: DenoisingSettings) -> dict[str, nn.Module]:
    """The pipeline's denoisers, with all components frozen and in eval mode, and the configured attention back ends."""
    if getattr(pipeline, "scheduler", None) is None:
        raise PolicyError(f"{type(pipeline).__name__} has no scheduler, so it takes no denoising steps")
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
    names = settings.denoisers or find_denoisers(pipeline)
    if missing := sorted(set(names) - set(modules)):
        raise ConfigError(f"denoisers {missing} are not components of the pipeline; it has {sorted(modules)}")
    for module in modules.values():
        module.requires_grad_(False).eval()
        if isinstance(module, ModelMixin) and not hasattr(module, "gradient_checkpointing"):
            module.__dict__["gradient_checkpointing"] = False  # ZImageControlNetModel reads it without defining it
    for name in names:
        if settings.gradient_checkpointing:
            _diffusers_model(name, modules[name], "gradient_checkpointing").enable_gradient_checkpointing()
        if settings.attention != "default":
            _set_attention(_diffusers_model(name, modules[name], "attention"), settings.attention)
    return {name: modules[name] for name in names}


def _set_attention(model: ModelMixin, backend: str) -> None:
    """Selects a back end of diffusers for one model; ``set_attention_backend`` would select it for all others too.

    Raises ConfigError if diffusers or the device does not have it, the model ignores it, or it has no backward.
    """
    processors = [getattr(part, "processor", None) for part in model.modules()]
    if not any(hasattr(processor, "_attention_backend") for processor in processors):
        raise ConfigError(
            f"policy.attention: {type(model).__name__} has only the attention of torch, without back ends to select; "
            "remove it"
        )
    active, _ = _AttentionBackendRegistry.get_active_backend()
    parameter = next(model.parameters())
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else parameter.device
    states = torch.zeros(1, 16, 2, 64, device=device, dtype=parameter.dtype, requires_grad=True)
    try:
        model.set_attention_backend(backend)
        output = dispatch_attention_fn(states, states, states, backend=AttentionBackendName(backend.lower()))
        output.sum().backward()
    except (ValueError, RuntimeError, ImportError, NotImplementedError, AssertionError) as error:
        raise ConfigError(f"policy.attention: {backend} cannot train {type(model).__name__} here: {error}") from error
    finally:
        _AttentionBackendRegistry.set_active_backend(active)


def _diffusers_model(name: str, module: nn.Module, setting: str) -> ModelMixin:
    """The denoiser as a diffusers model. Raises ConfigError if it is another module."""
    if not isinstance(module, ModelMixin):
        raise ConfigError(
            f"policy.{setting} needs a diffusers model, and {name} is a {type(module).__name__}; remove the setting"
        )
    return module


def find_denoisers(pipeline: Any) -> tuple[str, ...]:
    """Names of the denoising components by diffusers' naming; else the modules that neither encode nor decode.

    The first rollout verifies that the loop calls them. Raises ReplayError if no component looks like a denoiser.
    """
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    named = [name for name in modules if name.rstrip("_0123456789") in NAMED_DENOISERS]
    if named:
        return tuple(named)
    others = [
        name
        for name, part in modules.items()
        if not type(part).__module__.startswith("transformers.") and not callable(getattr(part, "decode", None))
    ]
    if not others:
        raise ReplayError(
            f"{type(pipeline).__name__} has no component that looks like a denoiser among {sorted(modules)}; "
            "name it: denoisers=('transformer',)"
        )
    return tuple(others)


def nested_pipelines(pipeline: Any) -> list[Any]:
    """Pipelines inside a combined pipeline, which share its modules under other names."""
    nested = [part for part in pipeline.__dict__.values() if isinstance(part, DiffusionPipeline)]
    return [*nested, *(inner for part in nested for inner in nested_pipelines(part))]


@contextmanager
def components_replaced(pipeline: Any, substitutes: Mapping[int, Any]) -> Iterator[None]:
    """Replaces components of a pipeline, by ``id``, within the context, and disables its progress bar."""
    attributes = pipeline.__dict__
    replaced = {name: substitutes[id(part)] for name, part in attributes.items() if id(part) in substitutes}
    replaced["_progress_bar_config"] = {"disable": True}
    before = {name: attributes[name] for name in replaced if name in attributes}
    try:
        attributes.update(replaced)
        yield
    finally:
        for name in replaced.keys() - before.keys():
            del attributes[name]
        attributes.update(before)


@contextmanager
def run_class(pipeline: Any) -> Iterator[None]:
    """Gives a diffusers pipeline the class of its runs within the context; other objects are unchanged."""
    stock = type(pipeline)
    if not isinstance(pipeline, DiffusionPipeline):
        yield
        return
    pipeline.__class__ = _run_class(stock)
    try:
        yield
    finally:
        pipeline.__class__ = stock


@cache
def _run_class(stock: type) -> type:
    """The class without ``no_grad`` of its call.

    A stock call finds its device by a search of all modules for offloading hooks, which costs a tenth of the run of a
    small model; without an accelerator the device is the CPU.
    """
    overrides: dict[str, Any] = {"__call__": inspect.unwrap(stock.__call__)}
    if not torch.accelerator.is_available():
        overrides["_execution_device"] = torch.device("cpu")
    return type(stock.__name__, (stock,), overrides)
