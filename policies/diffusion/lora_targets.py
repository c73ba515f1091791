"""Which linear layers of a denoiser carry adapters where the settings do not say."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from diffusers.models.attention import AttentionModuleMixin
from torch import nn

logger = logging.getLogger(__name__)


def adapter_targets(denoisers: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Endings of the names of the linear layers of the denoisers' attention, whatever these are called.

    Attention is a module that diffusers gives a processor, or whose class name ends in Attention. A denoiser without
    any carries adapters on all its linear layers, and a warning says so. An ending is as long as it must be to match no
    other module: ``to_q``, but ``self_attention.out_layer`` where feed-forwards have an ``out_layer`` too.
    """
    chosen: set[str] = set()
    taken: set[str] = set()
    for name, denoiser in denoisers.items():
        linear = set(_linear_paths(denoiser))
        attention = {path for path, module in denoiser.named_modules() if path and _attends(module)}
        attending = {path for path in linear if _is_within(path, attention)}
        if linear and not attending:
            logger.warning(
                "%s (%s) has no attention that is known as such: all its linear layers carry adapters; "
                "policy.lora.targets names others",
                name,
                type(denoiser).__name__,
            )
        attending = attending or linear
        chosen |= attending
        taken |= {ending for path, _ in denoiser.named_modules() if path not in attending for ending in _endings(path)}
    return tuple(sorted({next((e for e in _endings(path) if e not in taken), path) for path in chosen}))


def _attends(module: nn.Module) -> bool:
    known = isinstance(module, AttentionModuleMixin) or callable(getattr(module, "set_processor", None))
    return known or type(module).__name__.endswith("Attention")


def _linear_paths(denoiser: nn.Module) -> Iterator[str]:
    """Linear layers that are called as modules: torch's own attention reads the weights of its own past any adapter."""
    packed = {path for path, module in denoiser.named_modules() if isinstance(module, nn.MultiheadAttention)}
    for path, module in denoiser.named_modules():
        if isinstance(module, nn.Linear) and not _is_within(path, packed):
            yield path


def _is_within(path: str, roots: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in roots for length in range(1, len(parts)))


def _endings(path: str) -> Iterator[str]:
    """The endings of a path from a whole name on, the shortest first."""
    parts = path.split(".")
    return (".".join(parts[first:]) for first in reversed(range(len(parts))) if not parts[first].isdigit())
