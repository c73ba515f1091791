"""Default LoRA targets of a denoiser: the linear layers of its attention."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from diffusers.models.attention import AttentionModuleMixin
from torch import nn

logger = logging.getLogger(__name__)


def adapter_targets(denoisers: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Name endings of the linear layers of the denoisers' attention.

    Attention is a module with a diffusers processor, or whose class name ends in Attention. A denoiser without any gets
    adapters on all its linear layers, and a warning. An ending is as long as needed to match no other module: ``to_q``,
    but ``self_attention.out_layer`` if feed-forwards have an ``out_layer`` too.
    """
    targets: set[str] = set()
    other_endings: set[str] = set()
    for name, denoiser in denoisers.items():
        linear = set(_linear_paths(denoiser))
        attention = {path for path, module in denoiser.named_modules() if path and _is_attention(module)}
        attention_linears = {path for path in linear if _is_within(path, attention)}
        if linear and not attention_linears:
            logger.warning(
                "%s (%s) has no recognized attention: all its linear layers get adapters; set policy.lora.targets to "
                "select others",
                name,
                type(denoiser).__name__,
            )
        attention_linears = attention_linears or linear
        targets |= attention_linears
        other_endings |= {
            ending for path, _ in denoiser.named_modules() if path not in attention_linears for ending in _endings(path)
        }
    return tuple(sorted({next((e for e in _endings(path) if e not in other_endings), path) for path in targets}))


def _is_attention(module: nn.Module) -> bool:
    has_processor = isinstance(module, AttentionModuleMixin) or callable(getattr(module, "set_processor", None))
    return has_processor or type(module).__name__.endswith("Attention")


def _linear_paths(denoiser: nn.Module) -> Iterator[str]:
    """Linear layers that are called as modules: torch's own attention reads its weights without calling them."""
    packed = {path for path, module in denoiser.named_modules() if isinstance(module, nn.MultiheadAttention)}
    for path, module in denoiser.named_modules():
        if isinstance(module, nn.Linear) and not _is_within(path, packed):
            yield path


def _is_within(path: str, roots: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in roots for length in range(1, len(parts)))


def _endings(path: str) -> Iterator[str]:
    """The endings of a path at complete names, the shortest first."""
    parts = path.split(".")
    return (".".join(parts[first:]) for first in reversed(range(len(parts))) if not parts[first].isdigit())
