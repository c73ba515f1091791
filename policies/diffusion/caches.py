"""Caching hooks of diffusers on the denoisers, which carry state from call to call.

A cached block returns values of an earlier call, so a step depends on more than its latents, and gradients do not reach
the skipped blocks. They are disabled while decisions are sampled or scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from diffusers.hooks.hooks import StateManager
from torch import nn


def cache_names(modules: Sequence[nn.Module]) -> list[str]:
    """Class names of the caching hooks on these modules and their submodules."""
    return sorted({type(hook).__name__ for hook in _caching_hooks(modules)})


@contextmanager
def caches_off(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Disables caching hooks within the context; afterwards they are restored with their state."""
    references = [hook.fn_ref for hook in _caching_hooks(modules)]
    before = [(ref.pre_forward, ref.forward, ref.post_forward) for ref in references]
    try:
        for ref in references:
            ref.pre_forward, ref.post_forward = _arguments, _output
            ref.forward = ref.original_forward or ref.forward
        yield
    finally:
        for ref, (pre_forward, forward, post_forward) in zip(references, before, strict=True):
            ref.pre_forward, ref.forward, ref.post_forward = pre_forward, forward, post_forward


def _caching_hooks(modules: Sequence[nn.Module]) -> list[Any]:
    registries = [vars(part).get("_diffusers_hook") for module in modules for part in module.modules()]
    hooks = [hook for registry in registries if registry is not None for hook in registry.hooks.values()]
    return [hook for hook in hooks if hook._is_stateful or _shares_state(hook)]


def _shares_state(hook: Any) -> bool:
    """Whether the hook reads another hook's state: the later blocks of a first-block cache."""
    return any(isinstance(value, StateManager) for value in vars(hook).values())


def _arguments(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def _output(module: nn.Module, output: Any) -> Any:
    return output
